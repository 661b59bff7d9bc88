"""Jobs: a Spark session with Fairlead's settings, in which a pipeline runs until it ends or is stopped.

The command line and users' programs use this package, which must not depend on how a pipeline is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead_spark.pipelines import Pipeline


class JobError(Exception):
    """A job cannot be started or has failed; the message states the reason and the remedy."""


class RequirementMissing(JobError):
    """Software that jobs need is missing on this machine or is too old."""


class JobFailed(JobError):
    """The streaming query ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pipeline to run, with its options and its duration."""

    pipeline: Pipeline
    options: Mapping[str, str]
    """Options given by the user; all other options have the defaults of the pipeline."""
    checkpoint: str | None = None
    """Checkpoint folder from which the job continues after a stop. If None, the checkpoint folder is temporary, and
    every run starts from the beginning."""
    once: bool = False
    """Whether the job ends when all available records are processed."""
    seconds: float | None = None
    """Seconds after which the job ends; None for no limit."""
    every: str = "1 second"
    """Interval between two triggers."""
    group: str | None = None
    """Consumer group to which the progress is published. None means `job-` followed by the name of the pipeline; an
    empty text means no group."""

    @property
    def name(self) -> str:
        """The name of the streaming query."""
        return self.pipeline.name
