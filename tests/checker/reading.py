"""Records that readers received, by partition: the value at each offset, and the moves of each reader.

Most polls continue exactly after the previous poll. A poll that continues elsewhere is stored, and judged when every
offset with a record is known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anomalies import Anomaly, Findings


@dataclass(slots=True)
class KeyReads:
    """Results of all polls of one partition."""

    values: dict[int, str] = field(default_factory=dict)
    """First value that was read at each offset."""
    places: dict[str, int] = field(default_factory=dict)
    """First offset at which each value was read."""
    final: set[str] = field(default_factory=set)
    """Records received by the readers that read everything at the end."""
    read_to: int = -1
    final_to: int = -1
    ends: list[int] = field(default_factory=list)
    """Increasing acknowledged offsets with the time of each, for the lag."""
    end_times: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    """One process that reads one partition."""

    position: int | None = None
    """Offset after the last read record, or the chosen offset; None while the offset is unknown."""


@dataclass(slots=True)
class _Jump:
    """Two records that one process read consecutively, with offsets between them."""

    anomaly: Anomaly
    process: int
    key: str
    before: int
    after: int


class Reading:
    """The polls of a history."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.keys: dict[str, KeyReads] = {}
        self._readers: dict[tuple[int, str], _Reader] = {}
        self._jumps: list[_Jump] = []
        self.lag_seconds_max = 0.0
        self.lags_after_heal: list[tuple[float, str]] = []

    def of(self, key: str) -> KeyReads:
        """Return the reads of a partition."""
        reads = self.keys.get(key)
        if reads is None:
            reads = self.keys[key] = KeyReads()
        return reads

    def assign(self, process: int, keys: Iterable[str] | Mapping[str, int | None]) -> None:
        """Apply the restart of a process on some partitions, possibly at given offsets."""
        starts = keys if isinstance(keys, Mapping) else dict.fromkeys(keys)
        for key, start in starts.items():
            self._readers[process, key] = _Reader(start)

    def acknowledged(self, key: str, offset: int, time: float | None) -> None:
        """Record an acknowledged offset, which every later reader may see."""
        reads = self.of(key)
        if time is not None and (not reads.ends or offset > reads.ends[-1]):
            reads.ends.append(offset)
            reads.end_times.append(time)

    def poll(self, event: Mapping[str, Any], *, healed: bool) -> None:
        """Apply the records that a process received from one partition."""
        process, key, records = event["process"], event["key"], event["records"]
        reads = self.of(key)
        reader = self._readers.get((process, key))
        if reader is None:
            reader = self._readers[process, key] = _Reader()
        if key in event.get("rebalanced", ()):
            reader.position = None
        if records:
            self._begin(process, key, reader, records[0][0])
            self._place(reads, event)
            reader.position = records[-1][0] + 1
            reads.read_to = max(reads.read_to, records[-1][0])
        if event.get("position") is not None:
            reader.position = event["position"]
            reads.read_to = max(reads.read_to, event["position"] - 1)
        if event.get("final"):
            reads.final.update(value for _, value in records)
            reads.final_to = max(reads.final_to, (reader.position or 0) - 1)
            return  # Readers that read everything at the end lag on purpose.
        began = event.get("began", event.get("time"))
        if began is not None and reader.position is not None:
            self._lag(reads, reader.position, began, f"{key}: process {process}", healed=healed)

    def judge(self, known: Mapping[str, list[int]]) -> None:
        """Judge the moves of readers by the offsets that have a record (sorted, by key)."""
        for jump in self._jumps:
            if jump.after <= jump.before:
                how = "back"
            else:
                offsets = known.get(jump.key, [])
                skipped = bisect_left(offsets, jump.after) - bisect_right(offsets, jump.before)
                if not skipped:
                    continue
                how = f"over {skipped} records"
            said = f"{jump.key}: process {jump.process} went {how}, from {jump.before} to {jump.after}"
            self._findings.note(jump.anomaly, said)

    def _begin(self, process: int, key: str, reader: _Reader, first: int) -> None:
        """Store a step from one poll to the next if the step does not lead to the next offset."""
        position = reader.position
        if position is not None and first != position:
            kind = Anomaly.POLL_SKIP if first > position else Anomaly.NONMONOTONIC_POLL
            self._jumps.append(_Jump(kind, process, key, position - 1, first))

    def _place(self, reads: KeyReads, event: Mapping[str, Any]) -> None:
        """Apply the records of one poll, and store its steps that do not lead to the next offset."""
        values, places, key = reads.values, reads.places, event["key"]
        excused = key in event.get("rebalanced", ())
        expected = event["records"][0][0]
        for offset, value in event["records"]:
            if offset != expected and not excused:
                jump = _Jump(Anomaly.INTERNAL_POLL, event["process"], key, expected - 1, offset)
                self._jumps.append(jump)
            expected = offset + 1
            known = values.setdefault(offset, value)
            if known != value:
                said = f"{key}@{offset}: {known!r} and {value!r}"
                self._findings.note(Anomaly.INCONSISTENT_OFFSETS, said)
            place = places.setdefault(value, offset)
            if place != offset:
                said = f"{key}: {value!r} is at both {place} and {offset}"
                self._findings.note(Anomaly.DUPLICATE, said)

    def _lag(self, reads: KeyReads, position: int, began: float, who: str, *, healed: bool) -> None:
        """Record a lower bound of the reader's lag at a poll."""
        at = bisect_left(reads.ends, position)
        if at == len(reads.ends):
            return
        lag = began - reads.end_times[at]
        self.lag_seconds_max = max(self.lag_seconds_max, lag)
        if healed and lag > 0:
            self.lags_after_heal.append((lag, f"{who} was {lag:.3f} s behind at {position}"))
