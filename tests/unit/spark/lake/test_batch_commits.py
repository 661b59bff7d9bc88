"""Each micro-batch of a query is committed exactly once, with concurrent writers and lost answers."""

from __future__ import annotations

import datetime as dt
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from fairlead_spark.lake.columns import Columns, SchemaMismatch, columns_of
from fairlead_spark.lake.commits import BatchCommit, LakeCommitFailed, Outcome, folders_of, sweep
from fairlead_spark.lake.files import DataFile, TaskFiles
from fairlead_spark.lake.options import LakeOptions
from fairlead_spark.lake.statistics import statistics_of
from fairlead_spark.lake.storage import file_system
from refusals import raises


def field(name: str, kind: Any) -> dict[str, Any]:
    """Return a field in the notation of Spark's JSON."""
    return {"name": name, "type": kind, "nullable": False, "metadata": {"spark.watermarkDelayMs": 5}}


SCHEMA = {"type": "struct", "fields": [field("number", "long"), field("day", "string")]}


def columns(schema: dict[str, Any] = SCHEMA, *partition_by: str) -> Columns:
    """Return the columns of a frame."""
    return columns_of(schema, partition_by)


def task_files(path: Path, numbers: range, name: str = "part", day: str = "mon") -> list[DataFile]:
    """Write a file of a task, partitioned by day."""
    schema = pa.schema([("number", pa.int64()), ("day", pa.string())])
    with TaskFiles(file_system(str(path), {}), schema, ["day"], name, "zstd") as files:
        files.write(pa.record_batch([pa.array(numbers), pa.array([day] * len(numbers))], schema=schema))
        return files.finish()


def commit(path: Path, files: list[DataFile], batch: int | None, **rest: Any) -> Outcome:
    """Commit files as a batch of one query."""
    options = LakeOptions(str(path), ("day",))
    application = None if batch is None else ("query", batch)
    return BatchCommit(options, columns(SCHEMA, "day"), files, application, 1_000, **rest).run()


def numbers_in(path: Path) -> list[int]:
    """Return the numbers in the newest version of a table."""
    return sorted(DeltaTable(path).to_pyarrow_table()["number"].to_pylist())


def test_the_first_commit_makes_the_table(tmp_path: Path) -> None:
    """The first batch creates the table, with partitions and nullable columns, and is then written to it."""
    outcome = commit(tmp_path, task_files(tmp_path, range(3)), 0)
    table = DeltaTable(tmp_path)

    assert (outcome, table.version(), table.transaction_version("query")) == (Outcome.COMMITTED, 1, 0)
    assert [each["operation"] for each in table.history()] == ["WRITE", "CREATE TABLE"]
    assert table.metadata().partition_columns == ["day"]
    assert [(one.name, one.nullable, one.metadata) for one in table.schema().fields] == [
        ("number", True, {}),
        ("day", True, {}),
    ]
    assert numbers_in(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(
    ("partition_by", "is_stream", "warnings"), [((), True, 1), (("day",), True, 0), ((), False, 0)]
)
def test_a_stream_that_makes_a_table_without_partitions_warns(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    partition_by: tuple[str, ...],
    is_stream: bool,
    warnings: int,
) -> None:
    """A stream that creates a table without partitions logs one warning, because Spark may have dropped partitionBy."""
    options = LakeOptions(str(tmp_path), partition_by)
    for batch in (0, 1):
        frame = columns(SCHEMA, *partition_by)
        BatchCommit(options, frame, [], ("query", batch), 1_000, is_stream=is_stream).run()

    assert [record.name for record in caplog.records] == ["fairlead_spark.lake.commits"] * warnings
    assert all(str(tmp_path) in record.getMessage() for record in caplog.records)


def test_a_batch_that_comes_again_is_passed_over(tmp_path: Path) -> None:
    """A repeated batch, whether the newest or an older batch, is not committed again, and its new files are deleted."""
    for batch in (0, 1):
        commit(tmp_path, task_files(tmp_path, range(batch, batch + 1), f"batch-{batch}"), batch)
    again = [
        commit(tmp_path, task_files(tmp_path, range(batch, batch + 1), "again"), batch) for batch in (1, 0)
    ]

    assert again == [Outcome.REPEATED, Outcome.REPEATED]
    assert numbers_in(tmp_path) == [0, 1]
    assert DeltaTable(tmp_path).version() == 2
    assert [path.name for path in tmp_path.rglob("again*")] == []


def test_a_checkpoint_that_is_older_than_the_table_ends_its_stream(tmp_path: Path) -> None:
    """A micro-batch that is older than the last is an error, because Spark repeats only the last one unchanged."""
    for batch in (0, 1):
        commit(
            tmp_path, task_files(tmp_path, range(batch, batch + 1), f"batch-{batch}"), batch, is_stream=True
        )
    repeated = commit(tmp_path, task_files(tmp_path, range(1, 2), "again"), 1, is_stream=True)

    assert repeated is Outcome.REPEATED
    with raises(LakeCommitFailed, "micro-batch", 1, 0):
        commit(tmp_path, task_files(tmp_path, range(7, 8), "other"), 0, is_stream=True)


def test_values_without_bounds_are_written_all_the_same(tmp_path: Path) -> None:
    """If one column of a file cannot have bounds, as with Python's last timestamp, no column of the file has bounds."""
    ends = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)
    schema = pa.schema([("until", pa.timestamp("us", tz="UTC")), ("number", pa.int64())])
    pq.write_table(pa.table({"until": [ends], "number": [3]}, schema), tmp_path / "one.parquet")

    told = json.loads(statistics_of(pq.read_metadata(tmp_path / "one.parquet"), schema))

    assert "maxValues" not in told
    assert told["nullCount"] == {"until": 0, "number": 0}


def test_a_commit_whose_answer_was_lost_keeps_its_files(tmp_path: Path) -> None:
    """A commit that is retried after a lost answer detects that the table already has it, and keeps its files."""
    files = task_files(tmp_path, range(4))
    commit(tmp_path, files, 0)
    unnamed = task_files(tmp_path, range(4, 6), "unnamed")
    commit(tmp_path, unnamed, None)
    outcomes = [commit(tmp_path, files, 0), commit(tmp_path, unnamed, None)]

    assert outcomes == [Outcome.COMMITTED, Outcome.COMMITTED]
    assert numbers_in(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert DeltaTable(tmp_path).version() == 2


def test_one_of_two_drivers_with_the_same_batch_wins(tmp_path: Path) -> None:
    """Two drivers that commit the same batches at the same time commit each batch once."""
    together = Barrier(2)

    def drive(driver: int) -> list[Outcome]:
        outcomes = []
        for batch in range(10):
            files = task_files(tmp_path, range(batch, batch + 1), f"{driver}-{batch}")
            together.wait()
            outcomes.append(commit(tmp_path, files, batch))
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        both = list(zip(*pool.map(drive, (0, 1)), strict=True))

    assert numbers_in(tmp_path) == list(range(10))
    assert all(sorted(one.value for one in pair) == ["committed", "repeated"] for pair in both)
    assert len(list(tmp_path.rglob("*.parquet"))) == 10


def test_one_of_two_drivers_makes_the_table(tmp_path: Path) -> None:
    """If two drivers commit the first batch at the same time, one creates the table and the other finds the batch."""
    together = Barrier(2)

    def drive(driver: int) -> list[Outcome]:
        outcomes = []
        for table in (tmp_path / str(number) for number in range(20)):
            files = task_files(table, range(3), str(driver))
            together.wait()
            outcomes.append(commit(table, files, 0))
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        both = list(zip(*pool.map(drive, (0, 1)), strict=True))

    assert all(sorted(one.value for one in pair) == ["committed", "repeated"] for pair in both)
    assert [numbers_in(tmp_path / str(number)) for number in range(20)] == [[0, 1, 2]] * 20


def test_other_writers_are_no_hindrance(tmp_path: Path) -> None:
    """Every batch and every append of a concurrent writer is committed once."""
    commit(tmp_path, task_files(tmp_path, range(1)), 0)
    other = pa.table({"number": pa.array([1000], pa.int64()), "day": ["tue"]})

    def append() -> None:
        for _ in range(15):
            write_deltalake(tmp_path, other, mode="append")

    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(append)
        for batch in range(1, 16):
            commit(tmp_path, task_files(tmp_path, range(batch, batch + 1), f"batch-{batch}"), batch)
        appending.result()

    assert numbers_in(tmp_path) == [*range(16), *[1000] * 15]


def test_a_commit_that_never_gets_through_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that conflicts too often fails with an error that names the table, and keeps its files."""
    commit(tmp_path, task_files(tmp_path, range(1)), 0)
    files = task_files(tmp_path, range(1, 2), "second")

    def refuse(*_args: object, **_rest: object) -> None:
        raise CommitFailedError("another writer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refuse)
    with raises(LakeCommitFailed, 20, tmp_path):
        commit(tmp_path, files, 1)

    assert (tmp_path / files[0].path).exists()


def test_an_empty_batch_adds_no_version(tmp_path: Path) -> None:
    """An empty first batch creates the table, and later empty batches add no version."""
    for batch in (0, 1, 2):
        commit(tmp_path, [], batch)

    assert DeltaTable(tmp_path).version() == 0
    assert numbers_in(tmp_path) == []


def test_overwriting_replaces_and_is_not_repeated(tmp_path: Path) -> None:
    """In the output mode `complete`, a batch replaces the previous records, and its repetition changes nothing."""
    commit(tmp_path, task_files(tmp_path, range(5)), 0)
    commit(tmp_path, task_files(tmp_path, range(7, 9), "second"), 1, overwrite=True)
    again = commit(tmp_path, task_files(tmp_path, range(7, 9), "third"), 1, overwrite=True)

    assert again is Outcome.REPEATED
    assert numbers_in(tmp_path) == [7, 8]


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"number": pa.int64()}, "day"),
        (
            {"number": pa.int64(), "Day": pa.string()},
            "day Day",
        ),
        (
            {"number": pa.int32(), "day": pa.string()},
            "number long integer",
        ),
        (
            {"number": pa.int64(), "day": pa.string()},
            "partitionBy day",
        ),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(tmp_path: Path, table: dict[str, Any], named: str) -> None:
    """A frame that does not match the table is refused, its files are deleted, and the error names the column."""
    write_deltalake(tmp_path, pa.schema(table).empty_table())
    files = task_files(tmp_path, range(3))
    with raises(SchemaMismatch, *named.split()):
        commit(tmp_path, files, 0)

    assert DeltaTable(tmp_path).version() == 0
    assert not (tmp_path / files[0].path).exists()


def test_columns_are_added_and_missing_ones_are_null(tmp_path: Path) -> None:
    """With mergeSchema, the table gets new columns, and the query's rows have null in columns of other writers."""
    commit(tmp_path, task_files(tmp_path, range(2)), 0)
    wider = {"type": "struct", "fields": [*SCHEMA["fields"], field("text", "string")]}
    write_deltalake(
        tmp_path,
        pa.table({"number": pa.array([5], pa.int64()), "day": ["mon"], "other": pa.array([7], pa.int8())}),
        mode="append",
        schema_mode="merge",
    )
    commit(tmp_path, task_files(tmp_path, range(2, 3), "second"), 1)
    options = LakeOptions(str(tmp_path), ("day",), merge_schema=True)
    schema = pa.schema([("number", pa.int64()), ("day", pa.string()), ("text", pa.string())])
    with TaskFiles(file_system(str(tmp_path), {}), schema, ["day"], "third", "zstd") as third:
        third.write(pa.record_batch([pa.array([9]), pa.array(["mon"]), pa.array(["new"])], schema=schema))
        files = third.finish()
    BatchCommit(options, columns(wider, "day"), files, ("query", 2), 1_000).run()
    commit(tmp_path, task_files(tmp_path, range(10, 11), "fourth"), 3)
    rows = DeltaTable(tmp_path).to_pyarrow_table().sort_by("number")

    assert [rows[name].to_pylist() for name in ("number", "other", "text")] == [
        [0, 1, 2, 5, 9, 10],
        [None, None, None, 7, None, None],
        [None, None, None, None, "new", None],
    ]


@pytest.mark.parametrize(
    ("fields", "partition_by", "named"),
    [
        ([field("a", "void")], [], "a void"),
        (
            [field("a", {"type": "array", "elementType": "interval", "containsNull": True})],
            [],
            "a.element interval",
        ),
        ([field("a", "long"), field("A", "long")], [], "a"),
        ([field("a", "long")], ["b"], "partitionBy 'b' a"),
        (
            [field("a", "timestamp"), field("b", "long")],
            ["a"],
            "timestamp boolean byte",
        ),
        ([field("a", "long")], ["a"], "partitionBy"),
    ],
)
def test_what_delta_cannot_hold_is_refused(fields: list[Any], partition_by: list[str], named: str) -> None:
    """A type that Delta does not support is refused before a write, and the error names the column."""
    with raises(SchemaMismatch, *named.split()):
        columns_of({"type": "struct", "fields": fields}, partition_by)


def test_every_type_of_spark_that_delta_has_is_taken() -> None:
    """Every Spark type that Delta supports is accepted, including nested types."""
    inner = {"type": "struct", "fields": [field("key", "string"), field("value", "binary")]}
    fields = [
        field("headers", {"type": "array", "elementType": inner, "containsNull": False}),
        field("map", {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": False}),
        field("price", "decimal(12,2)"),
        field("at", "timestamp"),
        field("local", "timestamp_ntz"),
    ]
    arrow = columns({"type": "struct", "fields": fields}).arrow

    assert arrow.field("price").type == pa.decimal128(12, 2)
    assert arrow.field("at").type == pa.timestamp("us", "UTC")
    assert arrow.field("local").type == pa.timestamp("us")
    assert [one.name for one in arrow.field("headers").type.value_type] == ["key", "value"]
    assert all(one.nullable for one in arrow)


def test_what_killed_tasks_left_is_swept(tmp_path: Path) -> None:
    """A sweep removes the uncommitted files of its batch, and keeps all other files."""
    options = LakeOptions(str(tmp_path), ("day",))
    files = task_files(tmp_path, range(3), "part-q-00000007-a")
    left = task_files(tmp_path, range(3), "part-q-00000007-b") + task_files(
        tmp_path, range(3), "part-q-00000007-c"
    )
    others = task_files(tmp_path, range(3), "part-q-00000006-a") + task_files(tmp_path, range(3), "mine")
    commit(tmp_path, files, 7)
    swept = sweep(options, folders_of(files), "part-q-00000007-", keep=[file.path for file in files])

    assert swept
    assert len(left) == 2
    assert {file.path for file in files + others} == {
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")
    }


def test_bounds_are_in_the_log(tmp_path: Path) -> None:
    """Delta's log has the bounds of a file's columns, which allow readers to skip the file."""
    commit(tmp_path, task_files(tmp_path, range(3)), 0)
    [add] = [
        json.loads(line)["add"]
        for line in (tmp_path / "_delta_log" / f"{1:020}.json").read_text().splitlines()
        if line.startswith('{"add"')
    ]
    found = json.loads(add["stats"])

    assert (found["numRecords"], found["minValues"], found["maxValues"]) == (3, {"number": 0}, {"number": 2})
    assert add["modificationTime"] == 1_000
