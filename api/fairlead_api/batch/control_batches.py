"""Markers: control batches that end a transaction in a partition (rule 7.2.1).

A marker has no record and no body. The kind of a marker is in the extension, so that recovery and followers read only
headers. The leader of a partition writes markers, and clients skip control batches without decoding them. The layout is
described in docs/reference/record-batch.md.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NoReturn

import msgspec

from fairlead_api.batch.extension import ExtensionEntry, ExtensionType, pack_extension, unpack_extension
from fairlead_api.batch.header import (
    FORMAT,
    LENGTH_STOP,
    Attribute,
    BatchHeader,
    Codec,
    pack_header,
)
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_api.problems import ProblemError

MARKER_BYTES: Final = 112
"""Size of a marker in bytes."""
MARKER_VERSION: Final = 1
NO_OFFSET: Final = -1
_VALUE: Final = struct.Struct("<HHqq")
_MARKER_ATTRIBUTES: Final = int(Attribute.TRANSACTIONAL | Attribute.CONTROL)


class MarkerKind(IntEnum):
    """Outcome that a marker gives to the open transaction of its producer."""

    ABORT = 0
    COMMIT = 1


class Marker(msgspec.Struct, frozen=True, gc=False):
    """End of a transaction in a partition."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    kind: MarkerKind
    first_offset: Offset | None
    """First offset of the transaction in this partition, or None if the transaction has no batch in the partition."""
    decided_us: TimestampUs
    """Time at which the transaction was decided, in microseconds."""


def pack_marker(marker: Marker) -> bytes:
    """Return an unstamped marker of 112 bytes, which takes one offset."""
    first = NO_OFFSET if marker.first_offset is None else marker.first_offset
    value = _VALUE.pack(MARKER_VERSION, marker.kind, first, marker.decided_us)
    extension = pack_extension((ExtensionEntry(ExtensionType.MARKER, value),))
    header = BatchHeader(
        base_offset=0,
        length=MARKER_BYTES - LENGTH_STOP,
        leader_epoch=0,
        append_time_us=0,
        stamp_flags=0,
        stamp_checksum=0,
        content_checksum=0,
        format=FORMAT,
        codec=Codec.NONE,
        attributes=_MARKER_ATTRIBUTES,
        last_offset_delta=0,
        record_count=0,
        min_timestamp_us=marker.decided_us,
        max_timestamp_us=marker.decided_us,
        producer_id=marker.producer_id,
        producer_epoch=marker.epoch,
        base_sequence=-1,
        uncompressed_bytes=0,
        schema_id=0,
        extension_bytes=len(extension),
    )
    packed = pack_header(header, [extension]) + extension
    assert len(packed) == MARKER_BYTES, f"a marker of {len(packed)} bytes"
    return packed


def read_marker(extension: bytes, producer_id: int, epoch: int) -> Marker | None:
    """Return the marker in a control batch, or None for a control batch of another kind or version.

    `producer_id`, `epoch`: fields of the header. The checksum is not verified. Raises `malformed_batch` if the
    extension is malformed, or if the marker does not have the length of its version.
    """
    found = next((entry for entry in unpack_extension(extension) if entry.type == ExtensionType.MARKER), None)
    if found is None:
        return None
    if len(found.value) != _VALUE.size:
        _malformed(f"a marker entry has {len(found.value)} bytes; it must have {_VALUE.size}")
    version, kind, first, decided_us = _VALUE.unpack(found.value)
    if version != MARKER_VERSION or kind not in (MarkerKind.ABORT, MarkerKind.COMMIT):
        return None
    return Marker(
        ProducerId(producer_id),
        ProducerEpoch(epoch),
        MarkerKind(kind),
        None if first == NO_OFFSET else Offset(first),
        TimestampUs(decided_us),
    )


def _malformed(detail: str) -> NoReturn:
    raise ProblemError("malformed_batch", detail)
