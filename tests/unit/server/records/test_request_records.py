"""Records of a request as lists and as columns become the same batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.batches import ProducerStamp, record_batch
from fairlead_api.batch.extension import idempotency_extension
from fairlead_api.batch.header import Codec
from fairlead_broker.server.records.request_records import (
    LISTED_MAX,
    ON_LOOP_BYTES_MAX,
    ColumnarRecords,
    ListedRecords,
    RequestRecords,
)

PAYLOADS = st.none() | st.binary(max_size=20)
RECORDS = st.lists(st.tuples(PAYLOADS, PAYLOADS, st.integers(0, 2**50)), min_size=1, max_size=LISTED_MAX)


def shares_of(
    records: RequestRecords, partition_count: int, codec: Codec
) -> list[tuple[int, list[int], int, bytes]]:
    """Return partition, rows, number of records and batch of each share."""
    stamp, extension = ProducerStamp(1, 0, 7), idempotency_extension(b"key", bytes(16))
    return [
        (
            share.partition,
            list(share.rows),
            share.records.count,
            share.records.encode(codec, stamp, extension).to_bytes(),
        )
        for share in records.shares(partition_count, place_of_rest=partition_count - 1)
    ]


@given(records=RECORDS, partition_count=st.integers(1, 7), codec=st.sampled_from(list(Codec)))
def test_listed_records_become_the_same_batches_as_columns(
    records: list[tuple[bytes | None, bytes | None, int]], partition_count: int, codec: Codec
) -> None:
    """Lists and columns with the same records are divided in the same way, into the same bytes."""
    keys, values, times = (list(column) for column in zip(*records, strict=True))
    listed = ListedRecords(keys, values, times)
    columnar = ColumnarRecords(record_batch(values, keys, times, default_timestamp_us=0))

    shares = shares_of(listed, partition_count, codec)

    assert shares == shares_of(columnar, partition_count, codec)
    assert sorted(row for _, rows, _, _ in shares for row in rows) == list(range(len(records)))
    assert listed.has_null_keys == columnar.has_null_keys == (None in keys)
    assert listed.count == columnar.count == len(records)


def test_large_columns_may_block() -> None:
    """Columns block the event loop if they are larger than the limit; lists and small columns never do."""
    large = record_batch([bytes(ON_LOOP_BYTES_MAX)], default_timestamp_us=0)
    small = record_batch([b""], default_timestamp_us=0)

    assert ColumnarRecords(large).may_block()
    assert not ColumnarRecords(small).may_block()
    assert not ListedRecords([None], [b""], [0]).may_block()
