"""What is remembered of one producer and of one idempotency key. Values; they are replaced, never changed.

Structs and not dataclasses: one is made for every batch of an idempotent producer, and a frozen dataclass costs ten
times as much.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead_api.identifiers import Offset, ProducerEpoch, Sequence, TimestampUs
from fairlead_broker.producers.sequences import SEQUENCE_MAX, advanced, record_count

BATCHES_MAX: Final = 5
"""Batches of a producer that are remembered: as many as it may have in flight, so that any repeat is recognised."""
DIGEST_BYTES: Final = 16


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch of an idempotent producer, and where it is."""

    first_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    append_time_us: TimestampUs

    @property
    def last_offset(self) -> Offset:
        """Offset of its last record."""
        return Offset(self.base_offset + record_count(self.first_sequence, self.last_sequence) - 1)


class ProducerEntry(msgspec.Struct, frozen=True, gc=False):
    """A producer in its newest epoch."""

    epoch: ProducerEpoch
    batches: tuple[StoredBatch, ...]
    """The last ones, at least one and at most `BATCHES_MAX`, oldest first; each goes on where the one before ends."""

    @property
    def next_sequence(self) -> Sequence:
        """What the next batch must begin with."""
        return Sequence((self.batches[-1].last_sequence + 1) & SEQUENCE_MAX)

    @property
    def append_time_us(self) -> TimestampUs:
        """When its last batch was stamped."""
        return self.batches[-1].append_time_us

    def find(self, first_sequence: int, last_sequence: int) -> StoredBatch | None:
        """Return the remembered batch of exactly these sequences."""
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def followed_by(self, batch: StoredBatch) -> ProducerEntry:
        """Return the entry after one more batch of the same epoch."""
        return ProducerEntry(self.epoch, (*self.batches[-(BATCHES_MAX - 1) :], batch))


class KeyEntry(msgspec.Struct, frozen=True, gc=False):
    """A request with an idempotency key, and where its batch is."""

    digest: bytes
    """`DIGEST_BYTES` that tell whether a request with the same key is the same request."""
    base_offset: Offset
    last_offset: Offset
    append_time_us: TimestampUs


def stored_batch(
    base_sequence: int, last_offset_delta: int, base_offset: int, append_time_us: int
) -> StoredBatch:
    """Return the entry of a batch from the fields of its header."""
    last = advanced(base_sequence, last_offset_delta)
    return StoredBatch(Sequence(base_sequence), last, Offset(base_offset), TimestampUs(append_time_us))
