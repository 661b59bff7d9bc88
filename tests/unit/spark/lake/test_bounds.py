"""Filters that skip files by the column bounds in Delta's log find the same records as without bounds."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from fairlead_spark.lake.columns import columns_of
from fairlead_spark.lake.commits import BatchCommit
from fairlead_spark.lake.files import TaskFiles
from fairlead_spark.lake.options import LakeOptions
from fairlead_spark.lake.statistics import endless_columns, exact, statistics_of
from fairlead_spark.lake.storage import file_system
from refusals import raises

LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
MOMENT = pa.timestamp("us", "UTC")
LARGE = Decimal("123456789012345678.12")


def table_of(path: Path, kind: str, column: Any, name: str) -> DeltaTable:
    """Write the given column and a column of numbers as one file of a table."""
    schema = pa.schema([(name, column.type), ("number", pa.int64())])
    fields = [(name, kind), ("number", "long")]
    spelt = [{"name": each, "type": of, "nullable": True, "metadata": {}} for each, of in fields]
    with TaskFiles(file_system(str(path), {}), schema, [], "part", "zstd") as files:
        files.write(pa.record_batch([column, pa.array(range(len(column)))], schema=schema))
        finished = files.finish()
    columns = columns_of({"type": "struct", "fields": spelt}, ())
    BatchCommit(LakeOptions(str(path)), columns, finished, None, 1_000).run()
    return DeltaTable(path)


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ("double", pa.array([1.0, 2.0, None]), 1.5),
        ("double", pa.array([1.0, math.nan, 2.0]), 1.5),
        ("double", pa.array([-math.inf, 2.0, math.inf]), 1e300),
        ("float", pa.array([0.1, 0.3], pa.float32()), 0.2),
        ("boolean", pa.array([True, False, True]), False),
        (
            "decimal(10,2)",
            pa.array([Decimal("1.10"), Decimal("2.00")]).cast(pa.decimal128(10, 2)),
            Decimal("1.50"),
        ),
        ("decimal(20,2)", pa.array([Decimal("1.10"), LARGE]).cast(pa.decimal128(20, 2)), Decimal("2.00")),
        (
            "timestamp",
            pa.array([datetime(2026, 1, 1, tzinfo=UTC), LAST], MOMENT),
            datetime(2026, 1, 2, tzinfo=UTC),
        ),
        ("date", pa.array([date(2026, 1, 1), date.max]), date(2026, 1, 2)),
        ("string", pa.array([None, None], pa.string()), "x"),
        ("binary", pa.array([b"a", b"c"]), b"b"),
    ],
)
@pytest.mark.parametrize("name", ["column", "a.b"])
def test_a_filter_finds_what_is_there(tmp_path: Path, kind: str, column: Any, value: Any, name: str) -> None:
    """A filter on a column of any type finds the same rows as without bounds, for values, nulls and other columns."""
    table = table_of(tmp_path, kind, column, name).to_pyarrow_dataset()
    rows = pa.table({name: column, "number": range(len(column))})
    which, bound = pc.field(name), pa.scalar(value, column.type)
    there = column.drop_null()
    wanted = [which > bound, which <= bound, which.is_null(), which.is_valid(), pc.field("number") > 0]
    wanted += [which == each for each in there]

    for expression in wanted:
        found = table.to_table(filter=expression)["number"].to_pylist()
        assert found == rows.filter(expression)["number"].to_pylist(), expression


def test_bounds_are_written_where_every_column_has_them(tmp_path: Path) -> None:
    """Delta's log has exact bounds, even of floats and decimals, if every column of the file has bounds."""
    near = table_of(tmp_path / "near", "double", pa.array([0.5, -1.25, None]), "column")
    endless = table_of(tmp_path / "endless", "double", pa.array([0.5, math.nan]), "column")

    log = tmp_path / "near/_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    told = json.loads(next(each["add"]["stats"] for each in actions if "add" in each))
    assert told == {
        "numRecords": 3,
        "nullCount": {"column": 1, "number": 0},
        "minValues": {"column": -1.25, "number": 0},
        "maxValues": {"column": 0.5, "number": 2},
    }
    assert (near.version(), endless.version()) == (1, 1)
    assert endless_columns(pa.table({"a": [math.nan], "b": [None], "c": [1.0], "d": ["x"]})) == {"a"}


def test_decimals_are_bounds_where_json_has_the_same_number() -> None:
    """A decimal is a bound only if JSON represents it exactly."""
    assert [exact(Decimal(text)) for text in ("5.00", "-0.25", "0.0001")] == [5, -0.25, 0.0001]
    for text in ("1234567890123456789", "0.00001", "0.12345678901234567", "1e30"):
        with raises(ValueError):
            exact(Decimal(text))


def test_a_column_without_statistics_lets_the_file_have_no_bounds(tmp_path: Path) -> None:
    """A file with a column without statistics has no bounds."""
    schema = pa.schema([("one", pa.int64()), ("other", pa.int64())])
    pq.write_table(pa.table({"one": [1], "other": [2]}, schema), tmp_path / "file", write_statistics=["one"])

    told = json.loads(statistics_of(pq.read_metadata(tmp_path / "file"), schema))

    assert told == {"numRecords": 1, "nullCount": {"one": 0}}


@pytest.mark.parametrize(
    ("properties", "columns", "bounded"),
    [
        ({}, 40, True),
        ({"delta.dataSkippingNumIndexedCols": "5"}, 40, True),
        ({"delta.dataSkippingNumIndexedCols": "40"}, 40, False),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, 40, False),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, 32, True),
        ({"delta.dataSkippingStatsColumns": "c39"}, 40, False),
    ],
)
def test_a_table_that_wants_bounds_of_more_columns_gets_none(
    tmp_path: Path, properties: dict[str, str], columns: int, bounded: bool
) -> None:
    """A file has no bounds if the table requires bounds of more columns than are computed."""
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(columns)])
    rows = pa.record_batch([pa.array([1, 2])] * columns, schema=schema)
    write_deltalake(tmp_path, pa.Table.from_batches([rows]), configuration=properties)
    with TaskFiles(file_system(str(tmp_path), {}), schema, [], "part", "zstd") as files:
        files.write(rows)
        finished = files.finish()
    spelt = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in schema.names]
    frame = columns_of({"type": "struct", "fields": spelt}, ())
    BatchCommit(LakeOptions(str(tmp_path)), frame, finished, None, 1_000).run()

    table = DeltaTable(tmp_path)
    found = {name: len(table.to_pyarrow_table(filters=[(name, ">", 1)])) for name in schema.names}
    (log,) = (tmp_path / "_delta_log").glob("*1.json")
    assert found == dict.fromkeys(schema.names, 2)
    assert ("minValues" in log.read_text(encoding="utf-8")) is bounded
