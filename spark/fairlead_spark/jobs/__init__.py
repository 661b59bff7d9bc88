"""Jobs: a Spark session as Fairlead wants it, and a pipeline that runs in it until it ends or is stopped.

Called by the command line, and by programs that want the same. Must not know how a pipeline is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead_spark.pipelines import Pipeline


class JobError(Exception):
    """A job cannot be started, or has failed; the message says why, and what to do."""


class RequirementMissing(JobError):
    """Something that jobs need is not on this machine, or is too old."""


class JobFailed(JobError):
    """The streaming query ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run, and for how long."""

    pipeline: Pipeline
    options: Mapping[str, str]
    """Given options; the pipeline has defaults for the others."""
    checkpoint: str | None = None
    """Folder from which the job continues after a stop; None: a temporary one, so a run starts at the beginning."""
    once: bool = False
    """Work off what is there, and end."""
    seconds: float | None = None
    """End after so long; None: when asked to."""
    every: str = "1 second"
    """How often it looks for records."""
    group: str | None = None
    """Consumer group as which its progress is seen; None: `job-` and the name of the pipeline; empty: none."""

    @property
    def name(self) -> str:
        """The name of the query."""
        return self.pipeline.name
