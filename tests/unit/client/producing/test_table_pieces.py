"""Tables are split into batches for partitions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fairlead.errors import RecordError
from fairlead.producing.table_pieces import NO_KEY, pieces, slices, table_of, whole
from fairlead_api.partitioning import partition_for_key
from refusals import raises, refuses


def test_rows_go_where_their_key_belongs_in_the_order_of_the_table() -> None:
    """Rows of a table are sent to the partitions of their keys, in order, like single records."""
    keys = [b"a", b"b", b"a", b"c", b"b", b"a"]
    table = pa.table({"key": keys, "value": [str(row).encode() for row in range(6)]})
    found: dict[int, list[bytes]] = {}
    for partition, piece in pieces(table, 3, 1 << 20, 5):
        found.setdefault(partition, []).extend(piece.column("value").to_pylist())
    expected: dict[int, list[bytes]] = {}
    for row, key in enumerate(keys):
        expected.setdefault(partition_for_key(key, 3), []).append(str(row).encode())

    assert found == expected


def test_rows_without_a_key_are_left_to_the_producer() -> None:
    """Rows without a key go into pieces of their own, apart from the rows with a key, in order."""
    table = pa.table({"key": pa.array([None, b"a", None], pa.binary()), "value": [b"0", b"1", b"2"]})
    found = {
        partition: piece.column("value").to_pylist() for partition, piece in pieces(table, 2, 1 << 20, 5)
    }

    assert found == {NO_KEY: [b"0", b"2"], partition_for_key(b"a", 2): [b"1"]}


def test_a_table_without_keys_is_one_run() -> None:
    """A table without a key column is one piece without a partition."""
    assert [partition for partition, _ in pieces(pa.table({"value": [b"x", b"y"]}), 4, 1 << 20, 5)] == [
        NO_KEY
    ]


def test_pieces_are_cut_to_size() -> None:
    """Pieces of several rows are within the size limit, and the pieces together contain all rows."""
    table = pa.table({"value": [b"x" * 100] * 1000})
    cut = pieces(table, 4, 20_000, 5)

    assert all(piece.nbytes <= 20_000 for _, piece in cut)
    assert sum(piece.num_rows for _, piece in cut) == 1000


def test_a_named_partition_wins_over_the_keys() -> None:
    """If the caller names a partition, all rows are sent to that partition, regardless of their keys."""
    table = pa.table({"key": [b"a", b"b"], "value": [b"1", b"2"]})

    assert [(partition, piece.num_rows) for partition, piece in whole(table, 7, 1 << 20, 5)] == [(7, 2)]


def test_a_large_table_is_cut_into_slices_that_cover_it() -> None:
    """A large table is split into consecutive slices, so that casting and sorting never need a second full copy."""
    table = pa.table({"value": [b"x" * 1024] * (70 * 1024)})
    parts = list(slices(table))

    assert len(parts) > 1
    assert pa.concat_tables([pa.table(part) for part in parts]).equals(table)
    assert list(slices(table.slice(0, 0))) == []


def test_a_column_that_cannot_be_sent_is_named() -> None:
    """A table with a column that cannot be sent is refused, and the problem names the column."""
    with refuses("invalid_record", "colour"):
        pieces(pa.table({"value": [b"x"], "colour": ["red"]}), 1, 100, 5)


@pytest.mark.parametrize(("given", "kind"), [([b"x"], "list"), (b"x", "bytes"), (None, "NoneType")])
def test_a_value_that_is_no_table_is_refused_with_advice(given: object, kind: str) -> None:
    """A value that is not a table is refused, and the error explains how to create a table."""
    with raises(RecordError, kind) as refused:
        table_of(given, "flights")

    assert "pa.Table.from_pandas(frame)" in str(refused.value)
