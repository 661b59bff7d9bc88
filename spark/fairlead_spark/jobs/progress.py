"""Progress of a streaming query: one line for each batch, and totals at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from fairlead_spark.pipelines.dead_letters import OBSERVATION

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )


@dataclass(slots=True)
class JobCounts:
    """Totals of the batches of one run."""

    batches: int = 0
    records: int = 0
    """Number of records read."""
    dead_letters: int = 0
    """Number of records that were written to the topic of dead letters."""
    late: int = 0
    """Number of rows that Spark dropped as older than the watermark. Spark counts all records of one task with the same
    window and key as one row."""
    watermark: str | None = None
    """Latest watermark of the query; windows that end before the watermark are final."""

    def add(self, progress: StreamingQueryProgress) -> str:
        """Count a batch; return the line to print for the batch."""
        observed = progress.observedMetrics.get(OBSERVATION)
        # A query with dead letters reads the source twice, for good records and for dead letters, so Spark would count
        # each record twice.
        records = observed["records"] if observed is not None else progress.numInputRows
        dead = observed["dead_letters"] if observed is not None else 0
        late = sum(state.numRowsDroppedByWatermark for state in progress.stateOperators)
        self.batches += 1
        self.records += records
        self.dead_letters += dead
        self.late += late
        seconds = progress.batchDuration / 1000
        parts = [f"batch {progress.batchId}: {records:,} records in {seconds:.2f} s"]
        watermark = (progress.eventTime or {}).get("watermark")
        if watermark and not watermark.startswith("1970-"):
            self.watermark = watermark
            parts.append(f"watermark {watermark}")
        counts = {"dead letters": dead, "dropped as late": late}
        parts += [f"{number:,} {what}" for what, number in counts.items() if number]
        if progress.stateOperators:
            parts.append(f"{sum(state.numRowsTotal for state in progress.stateOperators):,} rows of state")
        return ", ".join(parts)


class JobWatch(StreamingQueryListener):
    """Counts the batches of queries with the given name, prints a line for each batch, and signals a query's end."""

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._run: str | None = None
        self.counts = JobCounts()
        self.batch_done = threading.Event()
        """Event that is set after every batch, and periodically while there are no new records."""
        self.ended = threading.Event()
        """Event that is set when the query has ended and its last batch has been counted."""
        self.wake = threading.Event()
        """Event that is set together with `ended`, and by a request to stop the job."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Store the run id of the query to watch."""
        if event.name == self._name:
            self._run = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Count a batch and print its line."""
        if str(event.progress.runId) == self._run:
            line = self.counts.add(event.progress)
            self._tell(line)
            self.batch_done.set()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Set `batch_done`, and print no line, since the trigger read no records."""
        if str(event.runId) == self._run:
            self.batch_done.set()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Signal the end of the query."""
        if str(event.runId) == self._run:
            self.ended.set()
            self.batch_done.set()
            self.wake.set()
