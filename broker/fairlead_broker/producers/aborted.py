"""Aborted transactions of a partition, as found in markers (rule 7.2.2)."""

from __future__ import annotations

from typing import NamedTuple

from fairlead_api.batch.control_batches import Marker, MarkerKind
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId


class AbortedTransaction(NamedTuple):
    """Batches that readers of committed records skip: the producer's batches from the first offset to the marker."""

    producer_id: ProducerId
    first_offset: Offset
    marker_offset: Offset
    epoch: ProducerEpoch


def aborted_by(marker: Marker, offset: Offset) -> AbortedTransaction | None:
    """Return the transaction that a marker at an offset aborts, or None if the partition has no batch to skip."""
    if marker.kind is not MarkerKind.ABORT or marker.first_offset is None:
        return None
    return AbortedTransaction(marker.producer_id, marker.first_offset, offset, marker.epoch)
