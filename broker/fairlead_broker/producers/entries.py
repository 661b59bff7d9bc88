"""Entries of one producer and of one idempotency key. Entries are immutable values.

The entries are `msgspec` structs, not dataclasses: every batch of an idempotent producer creates an entry, and
creating a frozen dataclass takes ten times as long.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlead_api.identifiers import Offset, ProducerEpoch, Sequence, TimestampUs
from fairlead_broker.producers.sequences import FIRST, SEQUENCE_MAX, advanced, record_count

BATCHES_MAX: Final = 5
"""Maximum number of remembered batches per producer. A producer has at most this many batches in flight, so every
repeated batch is recognised.
"""
DIGEST_BYTES: Final = 16


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch of an idempotent producer and its offsets in the log."""

    first_sequence: Sequence
    last_sequence: Sequence
    base_offset: Offset
    append_time_us: TimestampUs

    @property
    def last_offset(self) -> Offset:
        """Offset of the batch's last record."""
        return Offset(self.base_offset + record_count(self.first_sequence, self.last_sequence) - 1)


class ProducerEntry(msgspec.Struct, frozen=True, gc=False):
    """Newest epoch of a producer, and its newest batches in that epoch."""

    epoch: ProducerEpoch
    batches: tuple[StoredBatch, ...]
    """Newest batches, oldest first: at most `BATCHES_MAX`, with contiguous sequences. After a marker, only the last
    batch before the marker is left, which may have a lower epoch.
    """
    partition_time_us: int
    """Partition time of the last batch or marker, from which the age of the entry is counted."""
    is_transactional: bool = False
    """Whether the batches of the epoch belong to a transaction."""
    is_ended: bool = False
    """Whether a marker ended the transaction of the epoch."""

    @property
    def next_sequence(self) -> Sequence:
        """First sequence of the producer's next batch; 0 after a marker, since the next batch has a higher epoch."""
        return FIRST if self.is_ended else self.continued_sequence

    @property
    def continued_sequence(self) -> Sequence:
        """First sequence of the next batch of a Kafka client whose sequences continue after a marker."""
        if not self.batches:
            return FIRST
        return Sequence((self.batches[-1].last_sequence + 1) & SEQUENCE_MAX)

    def find(self, first_sequence: int, last_sequence: int) -> StoredBatch | None:
        """Return the remembered batch with exactly these sequences, or None."""
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def followed_by(self, batch: StoredBatch, partition_time_us: int) -> ProducerEntry:
        """Return the entry extended by a batch of the same epoch that was appended at a given partition time."""
        batches = (*self.batches[-(BATCHES_MAX - 1) :], batch)
        return ProducerEntry(self.epoch, batches, partition_time_us, self.is_transactional)


class KeyEntry(msgspec.Struct, frozen=True, gc=False):
    """A request with an idempotency key and the offsets of its batch."""

    digest: bytes
    """Digest of `DIGEST_BYTES` bytes that is compared if two requests have the same key."""
    base_offset: Offset
    last_offset: Offset
    append_time_us: TimestampUs
    partition_time_us: int
    """Partition time of the batch, from which the age of the entry is counted."""


def stored_batch(
    base_sequence: int, last_offset_delta: int, base_offset: int, append_time_us: int
) -> StoredBatch:
    """Return the entry for a batch, built from the fields of its header."""
    last = advanced(base_sequence, last_offset_delta)
    return StoredBatch(Sequence(base_sequence), last, Offset(base_offset), TimestampUs(append_time_us))
