"""Batches that compaction writes: decoded, they have the given records at the given offsets."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from fairlead_api.batch.batches import ProducerStamp, decode, decode_records, encode, offsets_of, record_batch
from fairlead_api.batch.extension import ExtensionEntry, ExtensionType, read_extension
from fairlead_api.batch.header import BatchHeader, Codec, check_checksums, read_header
from fairlead_api.batch.rewritten_batches import Cover, encode_rewritten

if TYPE_CHECKING:
    import pyarrow as pa

TIMES = [30, 10, 20]
NO_ROWS = np.empty(0, np.int64)


def source(codec: Codec = Codec.NONE) -> tuple[BatchHeader, pa.RecordBatch]:
    """Return the header of a stored batch of a transaction, and its columns."""
    columns = record_batch(
        [b"1", None, b"3"], [b"a", b"b", b"c"], TIMES, [[("h", b"x")], None, None], default_timestamp_us=0
    )
    stored = encode(columns, codec, ProducerStamp(7, 2, 5, is_transactional=True)).to_bytes()
    return msgspec.structs.replace(read_header(stored), leader_epoch=4), columns


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("offsets", [[100, 101, 102], [101, 103, 109]])
def test_records_keep_their_offsets_and_times(codec: Codec, offsets: list[int]) -> None:
    """A rewritten batch has exactly the records, without an offset column if no offset is missing."""
    header, columns = source(codec)
    end = 103 if offsets[-1] == 102 else 120
    horizon = ExtensionEntry(ExtensionType.HORIZON, struct.pack("<q", 99))
    data = encode_rewritten(Cover(header, 100, end, 50, 0, (horizon,)), columns, np.array(offsets))
    found = read_header(data)
    check_checksums(data, 0, found)
    records = decode_records(data)

    assert [record.offset for record in records] == offsets
    assert [record.timestamp_us for record in records] == TIMES
    assert [(record.key, record.value) for record in records] == [(b"a", b"1"), (b"b", None), (b"c", b"3")]
    assert records[0].headers == (("h", b"x"),)
    assert (found.base_offset, found.next_offset, found.leader_epoch) == (100, end, 4)
    assert (found.append_time_us, found.codec, found.has_offset_column) == (50, codec, end == 120)
    assert (found.min_timestamp_us, found.max_timestamp_us) == (10, 30)
    assert (found.is_transactional, found.has_producer) == (False, False)
    assert read_extension(data, found) == (horizon,)
    assert offsets_of(found, decode(data)).to_pylist() == offsets


def test_a_batch_without_records_has_no_body_and_keeps_its_producer() -> None:
    """An empty batch has 88 bytes, covers its offsets, and keeps the producer's fields if required."""
    header, _ = source(Codec.ZSTD)
    data = encode_rewritten(Cover(header, 100, 103, 50, 1, keeps_producer=True), None, NO_ROWS)
    found = read_header(data)

    assert len(data) == 88
    assert decode_records(data) == []
    assert (found.base_offset, found.next_offset, found.stamp_flags, found.codec) == (100, 103, 1, Codec.NONE)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (7, 2, 5)
    assert (found.min_timestamp_us, found.max_timestamp_us) == (10, 30)
