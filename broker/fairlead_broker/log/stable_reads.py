"""Batches for readers of committed records: whole batches, without the batches of aborted transactions (rule 7.4.1).

The bytes of the remaining batches are not copied. A read without aborted transactions costs one search in the index.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from fairlead_api.batch.header import LENGTH_STOP, Attribute
from fairlead_broker.producers import AbortedTransaction

_FIELDS: Final = struct.Struct("<qI26xH24xq")
"""Base offset, length, attributes and producer id of a header."""
_TRANSACTIONAL: Final = int(Attribute.TRANSACTIONAL)
_KINDS: Final = int(Attribute.TRANSACTIONAL | Attribute.CONTROL)


def first_offset(data: memoryview) -> int:
    """Return the base offset of the first batch."""
    base: int = _FIELDS.unpack_from(data)[0]
    return base


def without_aborted(data: memoryview, aborted: Sequence[AbortedTransaction]) -> list[memoryview]:
    """Return the batches that do not belong to aborted transactions. Adjacent batches share one view."""
    by_producer: dict[int, list[tuple[int, int]]] = {}
    for each in aborted:
        by_producer.setdefault(each.producer_id, []).append((each.first_offset, each.marker_offset))
    kept: list[memoryview] = []
    start = at = 0
    while at < len(data):
        base, length, attributes, producer_id = _FIELDS.unpack_from(data, at)
        stop = at + LENGTH_STOP + length
        if attributes & _KINDS == _TRANSACTIONAL and any(
            first <= base < marker for first, marker in by_producer.get(producer_id, ())
        ):
            if start < at:
                kept.append(data[start:at])
            start = stop
        at = stop
    if start < at:
        kept.append(data[start:at])
    return kept
