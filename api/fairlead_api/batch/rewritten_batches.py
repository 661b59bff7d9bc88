"""Batches that compaction writes in place of stored batches: fewer records at unchanged offsets.

Brokers call this module when they clean a log. A rewritten batch covers a range of offsets, and each record keeps its
offset. The record's position in the range is in the column `offset_delta`, which is left out if no offset is missing.
docs/reference/record-batch.md describes the layout. This module must not depend on which records remain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from fairlead_api.batch.columns import SCHEMA_WITH_OFFSETS, compact, numbers_of
from fairlead_api.batch.extension import ExtensionEntry, pack_extension
from fairlead_api.batch.header import (
    HEADER_BYTES,
    LENGTH_STOP,
    NO_PRODUCER,
    PADDING_SHIFT,
    STAMP_BYTES,
    Attribute,
    BatchHeader,
    Codec,
    make_stamp,
    pack_header,
    read_header,
)
from fairlead_api.batch.validation import CODEC_NAMES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TIMESTAMP_COLUMN: Final = 2
LAST_OFFSET_DELTA_MAX: Final = 2**31 - 1
"""Largest distance from the base offset to the last offset of a batch."""


class Cover(msgspec.Struct, frozen=True):
    """Offsets of a rewritten batch, and the fields that are copied from the stored batches in its range."""

    source: BatchHeader
    """Header of the first stored batch in the range: source of codec, schema and, if no record remains, the times."""
    base_offset: int
    next_offset: int
    append_time_us: int
    stamp_flags: int
    extension: tuple[ExtensionEntry, ...] = ()
    keeps_producer: bool = False
    """Whether the batch keeps producer id, epoch and base sequence of `source`."""


def encode_rewritten(cover: Cover, columns: pa.RecordBatch | None, offsets: NDArray[np.int64]) -> bytes:
    """Return a stamped batch with the records in the given columns of `SCHEMA`, or without records.

    `offsets`: offsets of the records in ascending order, within the range of the cover.
    """
    rows, source = len(offsets), cover.source
    delta = cover.next_offset - cover.base_offset - 1
    message: pa.Buffer | bytes = b""
    attributes, times = 0, (source.min_timestamp_us, source.max_timestamp_us)
    if columns is not None and rows:
        body = columns
        if rows - 1 != delta:
            attributes |= Attribute.OFFSET_COLUMN
            deltas = pa.py_buffer((offsets - cover.base_offset).astype(np.int32).data)
            column = pa.Array.from_buffers(pa.int32(), rows, [None, deltas], 0)
            body = pa.RecordBatch.from_arrays([*columns.columns, column], schema=SCHEMA_WITH_OFFSETS)
        message = compact(body).serialize()
        created = numbers_of(columns.column(_TIMESTAMP_COLUMN), np.int64)
        times = int(created.min()), int(created.max())
    codec = Codec(source.codec) if rows else Codec.NONE
    body_bytes = memoryview(pa.compress(message, CODEC_NAMES[codec], asbytes=True) if codec else message)
    extension, padding = pack_extension(cover.extension), -len(body_bytes) % 8
    content = tuple(part for part in (extension, body_bytes, bytes(padding)) if len(part))
    nbytes = HEADER_BYTES + sum(map(len, content))
    header = msgspec.structs.replace(
        source,
        length=nbytes - LENGTH_STOP,
        codec=codec,
        attributes=int(attributes) | padding << PADDING_SHIFT,
        last_offset_delta=delta,
        record_count=rows,
        min_timestamp_us=times[0],
        max_timestamp_us=times[1],
        producer_id=source.producer_id if cover.keeps_producer else NO_PRODUCER,
        producer_epoch=source.producer_epoch if cover.keeps_producer else NO_PRODUCER,
        base_sequence=source.base_sequence if cover.keeps_producer else NO_PRODUCER,
        uncompressed_bytes=len(memoryview(message)),
        extension_bytes=len(extension),
    )
    packed = pack_header(header, content)
    stamp = make_stamp(
        read_header(packed), cover.base_offset, source.leader_epoch, cover.append_time_us, cover.stamp_flags
    )
    return b"".join((stamp, memoryview(packed)[STAMP_BYTES:], *content))
