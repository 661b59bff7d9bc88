"""Control batches: markers that end a transaction (rule 7.2.1), and batches that begin a leader epoch.

A control batch has no record and no body. Its content is in the extension, so that recovery and followers read only
headers. The leader of a partition writes control batches, and clients skip them without decoding them. The batch that
begins an epoch (quorum Q3) takes one offset and lets a leader commit the records of earlier epochs; only people read
its contents. The layout is described in docs/reference/record-batch.md.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NoReturn

import msgspec

from fairlead_api.batch.extension import ExtensionEntry, ExtensionType, pack_extension, unpack_extension
from fairlead_api.batch.header import (
    FORMAT,
    HEADER_BYTES,
    LENGTH_STOP,
    NO_PRODUCER,
    Attribute,
    BatchHeader,
    Codec,
    pack_header,
)
from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampUs,
)
from fairlead_api.problems import ProblemError

MARKER_BYTES: Final = 112
"""Size of a marker in bytes."""
MARKER_VERSION: Final = 1
NO_OFFSET: Final = -1
_VALUE: Final = struct.Struct("<HHqq")
_MARKER_ATTRIBUTES: Final = int(Attribute.TRANSACTIONAL | Attribute.CONTROL)


class MarkerKind(IntEnum):
    """Outcome of a producer's open transaction, as stated by a marker."""

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
    packed = _packed(
        extension, _MARKER_ATTRIBUTES, marker.decided_us, producer_id=marker.producer_id, epoch=marker.epoch
    )
    assert len(packed) == MARKER_BYTES, f"a marker of {len(packed)} bytes"
    return packed


class EpochVoter(msgspec.Struct, frozen=True, gc=False):
    """A voter at the start of a leader epoch."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


class EpochBeginning(msgspec.Struct, frozen=True, gc=False):
    """Content of the batch that begins a leader epoch of a partition with a write quorum."""

    leader: BrokerId
    broker_epoch: BrokerEpoch
    write: int
    voters: tuple[EpochVoter, ...]


def pack_epoch_beginning(beginning: EpochBeginning, now_us: TimestampUs) -> bytes:
    """Return an unstamped batch that begins a leader epoch and takes one offset."""
    entry = ExtensionEntry(ExtensionType.LEADER_EPOCH, msgspec.json.encode(beginning))
    return _packed(pack_extension((entry,)), int(Attribute.CONTROL), now_us)


def _packed(
    extension: bytes, attributes: int, time_us: int, *, producer_id: int = NO_PRODUCER, epoch: int = 0
) -> bytes:
    header = BatchHeader(
        base_offset=0,
        length=HEADER_BYTES + len(extension) - LENGTH_STOP,
        leader_epoch=0,
        append_time_us=0,
        stamp_flags=0,
        stamp_checksum=0,
        content_checksum=0,
        format=FORMAT,
        codec=Codec.NONE,
        attributes=attributes,
        last_offset_delta=0,
        record_count=0,
        min_timestamp_us=time_us,
        max_timestamp_us=time_us,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=-1,
        uncompressed_bytes=0,
        schema_id=0,
        extension_bytes=len(extension),
    )
    return pack_header(header, [extension]) + extension


def read_marker(extension: bytes, producer_id: int, epoch: int) -> Marker | None:
    """Return the marker in a control batch, or None for a control batch of another kind or version.

    `producer_id`, `epoch`: fields of the header. The checksum is not verified. Raises `malformed_batch` if the
    extension is malformed, or if the marker does not have the length that its version requires.
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
