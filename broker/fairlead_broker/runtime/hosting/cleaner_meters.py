"""Metrics of the cleaner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fairlead_broker.telemetry import Telemetry

OUTCOMES: Final = ("done", "abandoned", "damaged", "failed", "no_space")
"""Outcomes of a round: all groups replaced, a log that changed during the round, a damaged segment, a failed disk or
process, or too little free space."""


class CleanerMeters:
    """Counters and gauges for the cleaning of one broker's replicas."""

    __slots__ = (
        "_dirty_ratio",
        "_dropped",
        "_kept",
        "_map_used",
        "_oldest",
        "_read",
        "_rounds",
        "_seconds",
        "_telemetry",
        "_waiting",
        "_written",
    )

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        metric = telemetry.metric
        self._rounds = {each: metric("fairlead_cleaner_rounds_total").labels(each) for each in OUTCOMES}
        self._read = metric("fairlead_cleaner_read_bytes_total")
        self._written = metric("fairlead_cleaner_written_bytes_total")
        records = metric("fairlead_cleaner_records_total")
        self._kept, self._dropped = records.labels("kept"), records.labels("dropped")
        self._seconds = metric("fairlead_cleaner_seconds_total")
        self._waiting = metric("fairlead_cleaner_waiting_seconds_total")
        self._map_used = metric("fairlead_cleaner_map_used_ratio")
        self._dirty_ratio = metric("fairlead_cleaner_dirty_ratio_max")
        self._oldest = metric("fairlead_cleaner_oldest_dirty_seconds")

    def watch(self, uncleanable: Callable[[], int]) -> None:
        """Export the number of partitions whose last round failed, computed at each scrape."""
        self._telemetry.metric("fairlead_cleaner_uncleanable_partitions").set_function(uncleanable)

    def looked(self, dirty_ratio_max: float, oldest_dirty_seconds: float) -> None:
        """Record the highest dirty ratio, and the age of the oldest record that no round has covered."""
        self._dirty_ratio.set(dirty_ratio_max)
        self._oldest.set(oldest_dirty_seconds)

    def mapped(self, used_ratio: float) -> None:
        """Record the fraction of the map of keys that was used in the last round."""
        self._map_used.set(used_ratio)

    def progressed(self, read_bytes: int, written_bytes: int) -> None:
        """Count bytes that a round read and wrote."""
        self._read.inc(read_bytes)
        self._written.inc(written_bytes)

    def waited(self, seconds: float) -> None:
        """Count the time that a round waited for permission to continue."""
        self._waiting.inc(seconds)

    def cleaned(self, kept: int, dropped: int) -> None:
        """Count the records of a round."""
        self._kept.inc(kept)
        self._dropped.inc(dropped)

    def ended(self, outcome: str, seconds: float) -> None:
        """Count a round."""
        self._rounds[outcome].inc()
        self._seconds.inc(seconds)
