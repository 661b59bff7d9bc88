"""Producer state of a partition: a function of the batches in its log, equal on every replica.

The log replays every batch into a `ProducerState`, and `PartitionProducers` bases its decisions on this state. An entry
expires when it is 24 hours older than the newest batch of the partition, in partition time. The clock of a broker is
not used, since replicas with different clocks would forget different entries.

Partition time follows the append times, but no step between two batches moves it by more than an hour. A clock that
jumps and is corrected later moves partition time forwards and backwards by the same step, so the jump does not expire
entries, and a jump back does not keep entries forever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec

from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.producers.entries import KeyEntry, ProducerEntry, StoredBatch
from fairlead_broker.producers.open_transactions import OpenTransactions

RETENTION_US: Final = 24 * 3600 * 1_000_000
"""Microseconds of partition time after which a producer or an idempotency key without a new batch is forgotten."""
STEP_US_MAX: Final = 3600 * 1_000_000
"""Maximum change of partition time in microseconds from one batch to the next, forwards or backwards. A larger
difference between append times comes from a pause without batches or from a clock jump; the two causes cannot be
distinguished.
"""
PRODUCERS_MAX: Final = 100_000
"""Maximum number of remembered producers per partition. The least recently active producer is forgotten first. The
limit keeps clients that use a new producer id for each batch from filling the memory. The next batch of a forgotten
producer is refused as unknown.
"""
KEYS_MAX: Final = 10_000
"""Maximum number of remembered idempotency keys of a partition. Further keys are refused until the oldest key expires.
"""
RANGED_IDS_FROM: Final = 1 << 32
"""Number of producer ids in the range of a cluster, and the lowest id of the first range. Clusters without ranges
allocated lower ids.
"""
BEGINNING_US: Final = TimestampUs(0)
_PRUNE_INTERVAL_US: Final = 60 * 1_000_000


class ProducerState:
    """Producers by id and idempotency keys, each in the order of their last batch."""

    __slots__ = (
        "_keys",
        "_last_append_time_us",
        "_oldest_live_us",
        "_open",
        "_partition_time_us",
        "_producers",
        "_pruned_at_us",
    )

    def __init__(
        self,
        last_append_time_us: TimestampUs = BEGINNING_US,
        partition_time_us: int = BEGINNING_US,
        producers: Mapping[ProducerId, ProducerEntry] | None = None,
        keys: Mapping[bytes, KeyEntry] | None = None,
        transactions: OpenTransactions | None = None,
    ) -> None:
        self._last_append_time_us = last_append_time_us
        self._partition_time_us = partition_time_us
        self._oldest_live_us = partition_time_us - RETENTION_US
        self._pruned_at_us = partition_time_us
        self._producers: OrderedDict[ProducerId, ProducerEntry] = OrderedDict(producers or {})
        self._keys: OrderedDict[bytes, KeyEntry] = OrderedDict(keys or {})
        self._open = OpenTransactions() if transactions is None else transactions

    # -- reading

    @property
    def transactions(self) -> OpenTransactions:
        """Open transactions of the partition. Callers must not change the object."""
        return self._open

    @property
    def last_append_time_us(self) -> TimestampUs:
        """Append time of the partition's last batch, or `BEGINNING_US` before the first batch."""
        return self._last_append_time_us

    @property
    def partition_time_us(self) -> int:
        """Partition time of the last batch, from which the ages of entries are counted."""
        return self._partition_time_us

    def append_time_us(self, now_us: TimestampUs) -> TimestampUs:
        """Return the append time, according to the leader's clock, for a batch that the leader appends now.

        The append time is never earlier than that of the last batch, unless the clock is more than an hour behind the
        last append time: in this case the last append time was wrong, and later batches must not inherit it.
        """
        last = self._last_append_time_us
        return last if now_us < last <= now_us + STEP_US_MAX else now_us

    @property
    def producers(self) -> Mapping[ProducerId, ProducerEntry]:
        """Remembered producers, the least recently active first. Callers must not change the mapping."""
        self._prune()
        return self._producers

    @property
    def keys(self) -> Mapping[bytes, KeyEntry]:
        """Remembered idempotency keys, the oldest first. Callers must not change the mapping."""
        self._prune()
        return self._keys

    def __len__(self) -> int:
        return len(self._producers) + len(self._keys)

    def producer(self, producer_id: int) -> ProducerEntry | None:
        """Return the entry of a producer, or None if no entry exists or the entry is older than 24 hours.

        The entry of an open transaction does not expire.
        """
        entry = self._producers.get(ProducerId(producer_id))
        if entry is None or (
            entry.partition_time_us < self._oldest_live_us and ProducerId(producer_id) not in self._open
        ):
            return None
        return entry

    def key(self, key: bytes) -> KeyEntry | None:
        """Return the entry of an idempotency key, or None if no entry exists or the entry is older than 24 hours."""
        entry = self._keys.get(key)
        return entry if entry is not None and self._is_live(entry.partition_time_us) else None

    def copy(self) -> ProducerState:
        """Return an independent copy of the state."""
        return ProducerState(
            self._last_append_time_us, self._partition_time_us, self._producers, self._keys, self._open.copy()
        )

    # -- replaying

    def advance(self, append_time_us: int) -> None:
        """Apply the append time of a batch, with or without a producer."""
        last = self._last_append_time_us
        if append_time_us == last:
            return
        self._last_append_time_us = TimestampUs(append_time_us)
        if last == BEGINNING_US:
            self._partition_time_us = self._pruned_at_us = append_time_us
        else:
            self._partition_time_us += max(-STEP_US_MAX, min(append_time_us - last, STEP_US_MAX))
        self._oldest_live_us = self._partition_time_us - RETENTION_US
        if self._partition_time_us - self._pruned_at_us >= _PRUNE_INTERVAL_US:
            self._prune()

    def replay(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        batch: StoredBatch,
        is_transactional: bool = False,
    ) -> None:
        """Apply a batch of an idempotent producer from the log. The leader has already checked the sequences."""
        self.advance(batch.append_time_us)
        before = self.producer(producer_id)
        # A batch of another kind, or behind the marker of its epoch, is from another cluster's producer with the same
        # id (`forget_shared_ids`).
        kind = (epoch, is_transactional, False)
        if before is not None and (before.epoch, before.is_transactional, before.is_ended) == kind:
            entry = before.followed_by(batch, self._partition_time_us)
        else:
            entry = ProducerEntry(epoch, (batch,), self._partition_time_us, is_transactional)
        if is_transactional and producer_id not in self._open:
            self._open.opened(producer_id, batch.base_offset)
        self._remember(producer_id, entry)

    def replay_marker(
        self, producer_id: ProducerId, epoch: ProducerEpoch, offset: Offset, append_time_us: TimestampUs
    ) -> None:
        """Apply a marker from the log. A marker below the producer's epoch changes only the partition time."""
        self.advance(append_time_us)
        before = self.producer(producer_id)
        if before is not None and before.epoch > epoch:
            return
        self._open.ended(producer_id, offset)
        last = () if before is None else before.batches[-1:]
        self._remember(producer_id, ProducerEntry(epoch, last, self._partition_time_us, True, True))

    def _remember(self, producer_id: ProducerId, entry: ProducerEntry) -> None:
        producers = self._producers
        producers[producer_id] = entry
        producers.move_to_end(producer_id)
        if len(producers) > PRODUCERS_MAX:
            self._drop_first(producers)

    def replay_key(
        self,
        key: bytes,
        digest: bytes,
        base_offset: Offset,
        last_offset: Offset,
        append_time_us: TimestampUs,
    ) -> None:
        """Apply a batch with an idempotency key from the log."""
        self.advance(append_time_us)
        self._keys[key] = KeyEntry(digest, base_offset, last_offset, append_time_us, self._partition_time_us)
        self._keys.move_to_end(key)

    # -- promotions

    def forget_shared_ids(self, before: Offset) -> None:
        """Forget the batches below an offset whose producer ids are not in the range of a cluster (rule L11).

        Clusters allocated ids below `RANGED_IDS_FROM` before they had ranges, so two clusters may have given one id to
        different producers. Without the entry of the other cluster's producer, the first batch of this cluster's
        producer is stored, and never taken for a repeat. The entry of an open transaction is kept for its marker. The
        offset 0 means that the partition was never promoted, so nothing is forgotten.
        """
        for producer_id, entry in list(self._producers.items()) if before else ():
            if producer_id >= RANGED_IDS_FROM or producer_id in self._open:
                continue
            batches = tuple(batch for batch in entry.batches if batch.base_offset >= before)
            if batches:
                self._producers[producer_id] = msgspec.structs.replace(entry, batches=batches)
            else:
                del self._producers[producer_id]

    # -- ageing

    def _is_live(self, partition_time_us: int) -> bool:
        return partition_time_us >= self._oldest_live_us

    def _prune(self) -> None:
        """Drop expired entries. Callers cannot observe when an entry is dropped, since each read checks the age.

        Partition time can go backwards by an hour, so an old entry may follow a younger entry in the order. An old
        entry behind a younger entry is dropped together with the younger entry.
        """
        self._pruned_at_us = self._partition_time_us
        producers, keys = self._producers, self._keys
        for _ in range(len(producers)):
            if self._is_live(next(iter(producers.values())).partition_time_us):
                break
            self._drop_first(producers)
        while keys and not self._is_live(next(iter(keys.values())).partition_time_us):
            keys.popitem(last=False)

    def _drop_first(self, producers: OrderedDict[ProducerId, ProducerEntry]) -> None:
        """Drop the first entry, or move it to the end if its transaction is open."""
        first = next(iter(producers))
        if first in self._open:
            producers.move_to_end(first)
        else:
            del producers[first]
