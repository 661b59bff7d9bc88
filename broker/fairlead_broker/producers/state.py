"""Producer state of a partition: a function of the batches in its log, equal on every replica.

The log replays every batch into a `ProducerState`, and `PartitionProducers` bases its decisions on this state. An entry
expires when it is 24 hours older than the latest append time of the partition. The clock of a broker is not used, since
replicas with different clocks would forget different entries (T13).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from fairlead_api.identifiers import ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.producers.entries import KeyEntry, ProducerEntry, StoredBatch

RETENTION_US: Final = 24 * 3600 * 1_000_000
"""Microseconds for which a producer or an idempotency key is remembered after its last batch."""
PRODUCERS_MAX: Final = 100_000
"""Maximum number of remembered producers of a partition; the least recently active producer is forgotten first. The
limit keeps clients that use a new producer id for each batch from filling the memory. The next batch of a forgotten
producer is refused as unknown.
"""
KEYS_MAX: Final = 10_000
"""Maximum number of remembered idempotency keys of a partition; further keys are refused until the oldest key
expires.
"""
BEGINNING_US: Final = TimestampUs(0)
_PRUNE_INTERVAL_US: Final = 60 * 1_000_000


class ProducerState:
    """Producers by id and idempotency keys, each in the order of their last batch."""

    __slots__ = ("_keys", "_newest_time_us", "_oldest_live_us", "_producers", "_pruned_at_us")

    def __init__(
        self,
        newest_time_us: TimestampUs = BEGINNING_US,
        producers: Mapping[ProducerId, ProducerEntry] | None = None,
        keys: Mapping[bytes, KeyEntry] | None = None,
    ) -> None:
        self._newest_time_us = newest_time_us
        self._oldest_live_us = newest_time_us - RETENTION_US
        self._pruned_at_us = newest_time_us
        self._producers: OrderedDict[ProducerId, ProducerEntry] = OrderedDict(producers or {})
        self._keys: OrderedDict[bytes, KeyEntry] = OrderedDict(keys or {})

    # -- reading

    @property
    def newest_time_us(self) -> TimestampUs:
        """Latest append time of the partition, from which the ages of entries are counted."""
        return self._newest_time_us

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
        """Return the entry of a producer, or None if no entry exists or the entry is older than 24 hours."""
        entry = self._producers.get(ProducerId(producer_id))
        if entry is None or entry.batches[-1].append_time_us < self._oldest_live_us:
            return None
        return entry

    def key(self, key: bytes) -> KeyEntry | None:
        """Return the entry of an idempotency key, or None if no entry exists or the entry is older than 24 hours."""
        entry = self._keys.get(key)
        return entry if entry is not None and self._is_live(entry.append_time_us) else None

    def copy(self) -> ProducerState:
        """Return an independent copy of the state."""
        return ProducerState(self._newest_time_us, self._producers, self._keys)

    # -- replaying

    def advance(self, append_time_us: int) -> None:
        """Apply the append time of a batch, with or without a producer."""
        if append_time_us > self._newest_time_us:
            self._newest_time_us = TimestampUs(append_time_us)
            self._oldest_live_us = append_time_us - RETENTION_US
            if append_time_us - self._pruned_at_us >= _PRUNE_INTERVAL_US:
                self._prune()

    def replay(self, producer_id: ProducerId, epoch: ProducerEpoch, batch: StoredBatch) -> None:
        """Apply a batch of an idempotent producer from the log. The leader has already checked the sequences."""
        self.advance(batch.append_time_us)
        producers = self._producers
        before = self.producer(producer_id)
        if before is not None and before.epoch == epoch:
            producers[producer_id] = before.followed_by(batch)
        else:
            producers[producer_id] = ProducerEntry(epoch, (batch,))
        producers.move_to_end(producer_id)
        if len(producers) > PRODUCERS_MAX:
            producers.popitem(last=False)

    def replay_key(self, key: bytes, entry: KeyEntry) -> None:
        """Apply a batch with an idempotency key from the log."""
        self.advance(entry.append_time_us)
        self._keys[key] = entry
        self._keys.move_to_end(key)

    # -- ageing

    def _is_live(self, append_time_us: int) -> bool:
        return append_time_us >= self._oldest_live_us

    def _prune(self) -> None:
        """Drop expired entries. Callers cannot observe when an entry is dropped, since each read checks the age.

        Append times can go backwards with the leader's clock, so an old entry may be behind a younger entry. The
        old entry is then dropped together with the younger entry.
        """
        self._pruned_at_us = self._newest_time_us
        producers, keys = self._producers, self._keys
        while producers and not self._is_live(next(iter(producers.values())).append_time_us):
            producers.popitem(last=False)
        while keys and not self._is_live(next(iter(keys.values())).append_time_us):
            keys.popitem(last=False)
