"""Bodies of the answers about the idempotent producers of a partition; the broker writes them, the SDK reads them."""

from __future__ import annotations

from fairlead_api.bodies.metadata import Answer


class PartitionProducer(Answer, frozen=True, kw_only=True):
    """Idempotent producer that a partition remembers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    """Sequence of the producer's last record; null if the partition remembers no batch of the producer."""
    last_offset: int | None
    """Offset of the producer's last record; null if the partition remembers no batch of the producer."""
    last_written_at: str
    """Partition time of the producer's last batch or marker, in RFC 3339."""
    open_from_offset: int | None
    """Offset of the first record of the producer's open transaction; null if no transaction is open."""
