"""Progress of a query: one line for each batch, and sums at the end."""

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
    """What the batches of one run did."""

    batches: int = 0
    records: int = 0
    """Records read."""
    dead_letters: int = 0
    """Records among them that went to the topic of dead letters."""
    late: int = 0
    """Dropped behind the watermark, as Spark counts: what one task has for one window and key is one."""
    watermark: str | None = None
    """No window that ends before this time will be written again."""

    def add(self, progress: StreamingQueryProgress) -> str:
        """Count a batch, and return the line that tells about it."""
        observed = progress.observedMetrics.get(OBSERVATION)
        # Where dead letters are split off the source is read on both sides, and Spark would count each record twice.
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
    """Counts the batches of the queries of one name, prints a line for each, and wakes the waiter for the end."""

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._run: str | None = None
        self.counts = JobCounts()
        self.batch_done = threading.Event()
        """Set after every batch, and now and then while there is nothing to read."""
        self.ended = threading.Event()
        """Set when the query has ended, after its last batch was counted."""
        self.wake = threading.Event()
        """Set with `ended`, and by a request to stop the job."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Remember which run is meant."""
        if event.name == self._name:
            self._run = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Count a batch and tell about it."""
        if str(event.progress.runId) == self._run:
            line = self.counts.add(event.progress)
            self._tell(line)
            self.batch_done.set()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Say nothing: there was nothing to read."""
        if str(event.runId) == self._run:
            self.batch_done.set()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Wake the waiter for the end."""
        if str(event.runId) == self._run:
            self.ended.set()
            self.batch_done.set()
            self.wake.set()
