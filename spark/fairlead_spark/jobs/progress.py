"""Progress of a query: one line for each batch, and totals at the end."""

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
    """Records read."""
    dead_letters: int = 0
    """Records that were written to the topic of dead letters."""
    late: int = 0
    """Rows dropped behind the watermark as Spark counts them: the records of one task for one window and key count as
    one."""
    watermark: str | None = None
    """Latest watermark; windows that end before this time are final."""

    def add(self, progress: StreamingQueryProgress) -> str:
        """Count a batch; return the line to print for it."""
        observed = progress.observedMetrics.get(OBSERVATION)
        # A query with dead letters reads the source on both sides, and Spark would count each record twice.
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
        told = {"dead letters": dead, "dropped as late": late}
        parts += [f"{number:,} {what}" for what, number in told.items() if number]
        if progress.stateOperators:
            parts.append(f"{sum(state.numRowsTotal for state in progress.stateOperators):,} rows of state")
        return ", ".join(parts)


class JobWatch(StreamingQueryListener):
    """Counts the batches of queries with one name, prints a line for each batch, and signals the end."""

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._run: str | None = None
        self.counts = JobCounts()
        self.batch_done = threading.Event()
        """Set after every batch, and periodically while there is nothing to read."""
        self.ended = threading.Event()
        """Set when the query has ended, after its last batch was counted."""
        self.wake = threading.Event()
        """Set with `ended`, and by a request to stop the job."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Store the id of the run to watch."""
        if event.name == self._name:
            self._run = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Count a batch and print its line."""
        if str(event.progress.runId) == self._run:
            line = self.counts.add(event.progress)
            self._tell(line)
            self.batch_done.set()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Set `batch_done`; without records, no line is printed."""
        if str(event.runId) == self._run:
            self.batch_done.set()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Signal the end of the query."""
        if str(event.runId) == self._run:
            self.ended.set()
            self.batch_done.set()
            self.wake.set()
