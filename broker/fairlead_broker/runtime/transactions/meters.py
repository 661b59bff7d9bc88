"""Metrics of transactions. Counters are updated at each decision, gauges are computed at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fairlead_api.batch.control_batches import MarkerKind
from fairlead_broker.registry.transaction_records import EndReason, Outcome
from fairlead_broker.telemetry import Telemetry

REASONS: Final[Mapping[Outcome, Sequence[EndReason]]] = {
    Outcome.COMMIT: (EndReason.CLIENT,),
    Outcome.ABORT: tuple(EndReason),
}


class TransactionMeters:
    """Metrics of the transactions that one broker decides and ends."""

    __slots__ = (
        "_commit_seconds",
        "_decided",
        "_decisions",
        "_end_seconds",
        "_looks",
        "_markers",
        "_telemetry",
        "_writes",
    )

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        decided = telemetry.metric("fairlead_transactions_total")
        # The series exist from the start, so that rates are 0 before the first decision.
        self._decided = {
            (outcome, reason): decided.labels(outcome.value, reason.value)
            for outcome, reasons in REASONS.items()
            for reason in reasons
        }
        markers = telemetry.metric("fairlead_transaction_markers_total")
        self._markers = {
            MarkerKind.COMMIT: markers.labels(Outcome.COMMIT.value),
            MarkerKind.ABORT: markers.labels(Outcome.ABORT.value),
        }
        self._commit_seconds = telemetry.metric("fairlead_transaction_commit_seconds")
        self._end_seconds = telemetry.metric("fairlead_transaction_end_seconds")
        self._looks = telemetry.metric("fairlead_transaction_looks_total")
        self._writes = telemetry.metric("fairlead_transaction_writes_total")
        self._decisions = telemetry.metric("fairlead_transaction_decisions_total")

    def watch(
        self,
        open_count: Callable[[], int],
        oldest_seconds: Callable[[], float],
        unstable_records: Callable[[], int],
        unfinished: Callable[[], int],
    ) -> None:
        """Export open transactions, the age of the oldest, unstable records and unconfirmed markers, at each scrape."""
        self._telemetry.metric("fairlead_transactions_open").set_function(open_count)
        self._telemetry.metric("fairlead_transaction_oldest_open_seconds").set_function(oldest_seconds)
        self._telemetry.metric("fairlead_partition_unstable_records").set_function(unstable_records)
        self._telemetry.metric("fairlead_transaction_unfinished_partitions").set_function(unfinished)

    def decided(self, outcome: Outcome, reason: EndReason) -> None:
        """Count a transaction whose decision this broker wrote."""
        self._decided[outcome, reason].inc()

    def committed(self, seconds: float) -> None:
        """Record the time from the request for a commit until its decision is written."""
        self._commit_seconds.observe(seconds)

    def ended(self, seconds: float) -> None:
        """Record the time from a commit until all partitions of its transaction have confirmed the marker."""
        self._end_seconds.observe(seconds)

    def appended_marker(self, kind: MarkerKind) -> None:
        """Count a marker that a leader on this broker appended."""
        self._markers[kind].inc()

    def looked(self, records: int) -> None:
        """Count records that were read to learn the outcomes of open transactions."""
        self._looks.inc(records)

    def wrote(self, decisions: int) -> None:
        """Count a write to the coordination store and the number of transaction changes in it."""
        self._writes.inc()
        self._decisions.inc(decisions)
