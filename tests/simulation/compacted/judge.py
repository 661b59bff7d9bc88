"""Invariants of a partition whose replicas clean their logs, and the history against which replicas are compared.

The world notes every record that a leader has stored, and calls the judge after each step.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from cleaning_kit import committed, newest
from fairlead_api.batch.batches import Record
from fairlead_api.batch.header import iterate_headers
from fairlead_api.identifiers import Offset
from fairlead_broker.log import PartitionLog
from fairlead_broker.log.newest_digest import digest_newest
from log_kit import read_all
from simulator.judge import Violation

SEED = bytes(range(32))


class OffsetsCovered(Violation):
    """An offset lies in no batch or in two, or in a batch of another leader epoch."""


class NewestOfEachKeyStays(Violation):
    """A committed record that is the newest of its key is missing, or a record has changed."""


class NoDeletedKeyBack(Violation):
    """A replica shows a value of a key whose newest committed record is a tombstone."""


class DeletesReachReaders(Violation):
    """A reader that was fast enough still has a key that was deleted."""


class ReplicasAgreeOnNewest(Violation):
    """Two complete replicas have different digests of their newest records."""


@dataclass
class History:
    """Records of the partition, as the leaders have stored them."""

    records: dict[int, Record] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Leader epochs, each with its first offset."""

    def lead(self, log: PartitionLog, high_watermark: int) -> None:
        """Adopt the epochs of a new leader's log, and its records from the high watermark on."""
        self.epochs = [(each.epoch, each.start_offset) for each in log.leader_epochs]
        self.records = {offset: each for offset, each in self.records.items() if offset < high_watermark}
        self.records |= {each.offset: each for each in committed(log, high_watermark)}

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of an offset."""
        return self.epochs[bisect_right(self.epochs, offset, key=lambda each: each[1]) - 1][0]

    def newest(self, end_offset: int) -> dict[bytes, Record]:
        """Return the newest record of each key below an offset, tombstones included."""
        return {
            each.key: each
            for offset, each in sorted(self.records.items())
            if offset < end_offset and each.key is not None
        }


def check_log(history: History, log: PartitionLog, known_end: int, name: str) -> None:
    """Check that a log covers every offset once, and the offsets below `known_end` in their leader epochs."""
    expected = int(log.log_start_offset)
    for _, header in iterate_headers(memoryview(read_all(log))):
        if header.base_offset != expected:
            raise OffsetsCovered(f"{name}: a batch begins at {header.base_offset}, not at {expected}")
        expected = header.next_offset
        for offset in (header.base_offset, header.last_offset):
            if offset < known_end and history.epoch_of(offset) != header.leader_epoch:
                raise OffsetsCovered(f"{name}: offset {offset} has leader epoch {header.leader_epoch}")
    if expected != log.end_offset or log.damaged:
        raise OffsetsCovered(f"{name}: the log ends at {expected}, not at {log.end_offset}; {log.damaged}")


def check_records(history: History, log: PartitionLog, high_watermark: int, name: str) -> None:
    """Check the records below the high watermark in a complete replica."""
    kept = [each for each in committed(log) if each.offset < high_watermark]
    for each in kept:
        if history.records.get(each.offset) != each:
            raise NewestOfEachKeyStays(f"{name}: {each} is stored for {history.records.get(each.offset)}")
    found, expected = newest(kept), history.newest(high_watermark)
    for key in found.keys() - {key for key, each in expected.items() if each.value is not None}:
        raise NoDeletedKeyBack(f"{name}: {key!r} has {found[key]}")
    for key, each in expected.items():
        if each.value is not None and found.get(key) != each:
            raise NewestOfEachKeyStays(f"{name}: {key!r} has {found.get(key)}, not {each}")


def check_agreement(logs: dict[str, PartitionLog], high_watermark: int) -> None:
    """Check that complete replicas have the same digest of their newest records."""
    digests = {
        name: digest_newest(log, log.log_start_offset, Offset(high_watermark), SEED).digest
        for name, log in logs.items()
    }
    if len(set(digests.values())) > 1:
        raise ReplicasAgreeOnNewest(str(digests))


def check_reader(history: History, shown: dict[bytes, Record], end_offset: int) -> None:
    """Check the table of a reader that has read a log up to an offset within `delete.retention.ms`."""
    for key, each in history.newest(end_offset).items():
        if each.value is None and key in shown:
            raise DeletesReachReaders(f"{key!r} has {shown[key]}, but was deleted at offset {each.offset}")
