"""One run of a pipeline, which ends when all records are processed, the time is up, or a stop is requested."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from fairlead_spark.jobs import Job, JobFailed
from fairlead_spark.jobs.progress import JobCounts, JobWatch
from fairlead_spark.pipelines import Findings, Report
from fairlead_spark.progress import GroupProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_SECONDS_MAX: Final = 30.0
"""Maximum time for which a stop waits for the batch in progress. A batch that takes longer is cancelled, and the next
run repeats it."""
LOOK_SECONDS: Final = 5.0
LAST_EVENTS_SECONDS_MAX: Final = 30.0
_PYTHON_ERROR: Final = ("Error", "Exception", "Exit")


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Summary of one run of a job."""

    pipeline: str
    query_id: str
    """Id of the streaming query, which is the same for all runs with one checkpoint."""
    run_id: str
    counts: JobCounts = field(default_factory=JobCounts)

    def to_dict(self) -> dict[str, object]:
        """Return the summary as plain values."""
        return {
            "pipeline": self.pipeline,
            "query_id": self.query_id,
            "run_id": self.run_id,
            **asdict(self.counts),
        }


class JobRun:
    """Runs one job; `stop` may be called from another thread or a signal handler."""

    def __init__(self, spark: SparkSession, job: Job, tell: Callable[[str], None]) -> None:
        self._spark = spark
        self._job = job
        self._tell = tell
        self._watch = JobWatch(job.name, tell)

    def stop(self) -> None:
        """Request a stop after the batch in progress, without waiting for the job to end."""
        self._watch.wake.set()

    def run(self) -> JobSummary:
        """Run the job until it has ended; return its summary.

        Raises:
            PipelineOptionError: an option is invalid. FairleadError: the cluster does not answer. JobFailed: Spark
            refuses the query, or it ended with an error.
        """
        job = self._job
        options = job.pipeline.complete(job.options)
        with self._checkpoint() as checkpoint, self._listeners(options["bootstrap"]):
            try:
                query = job.pipeline.start(
                    self._spark, options, checkpoint=checkpoint, once=job.once, every=job.every
                )
            except PySparkException as error:
                message = f"pipeline {job.name} cannot be started: {cause_of(error)}"
                raise JobFailed(message) from error
            try:
                self._wait(query)
            finally:
                self._end(query)
            failure = query.exception()
            # Spark reports the last batch and then the end of the query in the same listener thread.
            self._watch.ended.wait(LAST_EVENTS_SECONDS_MAX)
        if failure is not None:
            message = f"pipeline {job.name} failed: {cause_of(failure)}"
            raise JobFailed(message) from failure
        return JobSummary(job.name, str(query.id), str(query.runId), self._watch.counts)

    def _wait(self, query: StreamingQuery) -> None:
        """Wait until the query has ended, the time is up, or a stop is requested."""
        left = self._job.seconds
        while left is None or left > 0:
            step = LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)
            # The query is also polled: a killed JVM sends no event, but a call to a killed JVM raises an error.
            if self._watch.wake.wait(step) or not query.isActive:
                return
            left = None if left is None else left - step

    def _end(self, query: StreamingQuery) -> None:
        """Stop a running query between two batches."""
        if not query.isActive:
            return
        self._watch.batch_done.clear()
        if query.status["isTriggerActive"]:
            self._watch.batch_done.wait(BATCH_SECONDS_MAX)
        query.stop()

    @contextmanager
    def _checkpoint(self) -> Iterator[str]:
        if self._job.checkpoint is not None:
            yield self._job.checkpoint
            return
        self._tell("no --checkpoint: the next run starts at startingOffsets again")
        with tempfile.TemporaryDirectory(prefix="fairlead-job-", ignore_cleanup_errors=True) as folder:
            yield folder

    @contextmanager
    def _listeners(self, bootstrap: str) -> Iterator[None]:
        group = f"job-{self._job.name}" if self._job.group is None else self._job.group
        progress = GroupProgress(bootstrap, group, self._job.name) if group else None
        listeners = [self._watch] if progress is None else [self._watch, progress]
        for listener in listeners:
            self._spark.streams.addListener(listener)
        try:
            yield
        finally:
            for listener in listeners:
                self._spark.streams.removeListener(listener)
            if progress is not None:
                progress.close()


def run_report(spark: SparkSession, report: Report, options: Mapping[str, str]) -> Findings:
    """Run a report with the options given by the user; return its findings.

    Raises:
        PipelineError: an option is invalid, or an input does not answer. FairleadError: the cluster does not answer.
        JobFailed: the query ended with an error.
    """
    try:
        return report.findings(spark, report.complete(options))
    except PySparkException as error:
        message = f"report {report.name} failed: {cause_of(error)}"
        raise JobFailed(message) from error


def cause_of(failure: PySparkException) -> str:
    """Return the failure in one line: the last line of a Python traceback, else the first line of Spark's message.

    Spark appends the traceback of a Python worker to its own message, after the JVM's stack trace.
    """
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    raised = [line for line in lines if line.partition(":")[0].split(".")[-1].endswith(_PYTHON_ERROR)]
    own = [line for line in raised if "Py4J" not in line and not line.startswith(("org.", "java.", "at "))]
    return own[-1] if own else lines[0] if lines else "Spark reports no reason"
