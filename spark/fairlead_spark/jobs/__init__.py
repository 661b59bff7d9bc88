"""Jobs: a Spark session with Fairlead's settings, and a pipeline that runs in it until it ends or is stopped.

Called by the command line and by users' programs. The room must not know how a pipeline is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead_spark.pipelines import Pipeline


class JobError(Exception):
    """A job cannot be started or has failed; the message states the reason and the remedy."""


class RequirementMissing(JobError):
    """A requirement of jobs is missing on this machine or too old."""


class JobFailed(JobError):
    """The streaming query ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pipeline to run, with its options and its duration."""

    pipeline: Pipeline
    options: Mapping[str, str]
    """Given options; the pipeline has defaults for all other options."""
    checkpoint: str | None = None
    """Checkpoint folder from which the job continues after a stop. With None, the folder is temporary, and every run
    starts from the beginning."""
    once: bool = False
    """Whether the job ends when all available records are processed."""
    seconds: float | None = None
    """Seconds after which the job ends; None for no limit."""
    every: str = "1 second"
    """Interval between two triggers."""
    group: str | None = None
    """Consumer group for the published progress. None means `job-` and the name of the pipeline; empty means no
    group."""

    @property
    def name(self) -> str:
        """The name of the query."""
        return self.pipeline.name
