"""The files of one task: Parquet by partition, limited in number and memory, with column bounds, removed on failure."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_spark.lake import files as lake_files
from fairlead_spark.lake.files import DataFile, PartitionValueError, TaskFiles
from fairlead_spark.lake.statistics import lower, statistics_of, upper
from fairlead_spark.lake.storage import file_system
from refusals import raises

SCHEMA = pa.schema(
    [("number", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32())]
)
# Hypothesis needs bounds without a time zone. Python's calendar and rounded-up bounds end in the year 9999.
MOMENTS = (datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001
START = datetime(2026, 11, 22, tzinfo=UTC)


def batch(numbers: range, *, day: date | None = date(2026, 11, 22), zone: str = "UTC") -> pa.RecordBatch:
    """Return rows as Spark passes them, with timestamps in the time zone of the session."""
    at = pa.array([START + timedelta(microseconds=number) for number in numbers], pa.timestamp("us", zone))
    texts = pa.array([f"text {number}" for number in numbers])
    return pa.record_batch(
        [pa.array(numbers, pa.int64()), texts, at, pa.array([day] * len(numbers), pa.date32())],
        names=["_0", "_1", "_2", "_3"],
    )


def task(folder: Path, *partition_by: str) -> TaskFiles:
    """Return the files of a task that writes into a folder."""
    return TaskFiles(file_system(str(folder), {}), SCHEMA, partition_by, "part", "zstd")


def written(folder: Path, file: DataFile) -> pa.Table:
    """Return the contents of a file."""
    return pq.ParquetFile(folder / file.path).read()


def names(folder: Path) -> list[str]:
    """Return every file below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_each_partition_has_files_of_its_own(tmp_path: Path) -> None:
    """Rows are written to files of their partition, without the partition column; the partition may be null."""
    days = [date(2026, 11, 22), date(2026, 11, 23), None]
    mixed = pa.concat_batches(
        [batch(range(place * 10, place * 10 + 10), day=day) for place, day in enumerate(days)]
    )

    with task(tmp_path, "day") as open_task:
        open_task.write(mixed)
        open_task.write(batch(range(30, 35), day=days[1]))
        found = {file.partition["day"]: file for file in open_task.finish()}

    assert {day: file.rows for day, file in found.items()} == {"2026-11-22": 10, "2026-11-23": 15, None: 10}
    assert written(tmp_path, found["2026-11-23"])["number"].to_pylist() == [*range(10, 20), *range(30, 35)]
    assert written(tmp_path, found[None]).schema.names == ["number", "text", "at"]
    assert found["2026-11-22"].size == (tmp_path / found["2026-11-22"].path).stat().st_size


def test_moments_are_stored_in_utc(tmp_path: Path) -> None:
    """Timestamps of any session time zone are stored in UTC."""
    with task(tmp_path) as open_task:
        open_task.write(batch(range(3), zone="Asia/Kolkata"))
        [file] = open_task.finish()

    assert written(tmp_path, file).schema.field("at").type == pa.timestamp("us", "UTC")
    assert written(tmp_path, file)["at"].to_pylist()[0] == START


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """A failed task deletes its finished and its open files."""
    with pytest.raises(ZeroDivisionError), task(tmp_path, "day") as open_task:  # noqa: PT012 - the write fails midway
        for day in (1, 2, 3):
            open_task.write(batch(range(5), day=date(2026, 11, day)))
        open_task._close(("2026-11-01",))
        1 / 0  # noqa: B018

    assert names(tmp_path) == []


def test_what_waits_and_what_is_open_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with many partitions keeps few files open, flushes row groups early, and loses no row."""
    monkeypatch.setattr(lake_files, "OPEN_FILES_MAX", 3)
    monkeypatch.setattr(lake_files, "BUFFERED_BYTES_MAX", 2000)
    monkeypatch.setattr(lake_files, "FILE_BYTES_MAX", 4000)
    with task(tmp_path, "day") as open_task:
        for number in range(200):
            day = date(2026, 1, 1) + timedelta(days=number % 7)
            open_task.write(batch(range(number * 10, number * 10 + 10), day=day))

            assert len(open_task._open) <= 3
            assert sum(one.waiting_bytes for one in open_task._open.values()) <= 2000
        finished = open_task.finish()
    numbers = [number for file in finished for number in written(tmp_path, file)["number"].to_pylist()]

    assert sorted(numbers) == list(range(2000))
    assert sorted(file.path for file in finished) == names(tmp_path)


def test_names_of_folders_are_safe_and_values_are_kept(tmp_path: Path) -> None:
    """A partition value with special characters is escaped in the folder's name and unchanged in the log."""
    schema = pa.schema([("number", pa.int64()), ("place", pa.string())])
    rows = pa.record_batch([pa.array([1, 2]), pa.array(["../../a/ü", ""])], schema=schema)
    with TaskFiles(file_system(str(tmp_path), {}), schema, ["place"], "part", "snappy") as open_task:
        open_task.write(rows)
        found = {file.partition["place"]: Path(file.path).parent.name for file in open_task.finish()}

    assert found == {"../../a/ü": "place=.._.._a__", None: "place=__HIVE_DEFAULT_PARTITION__"}


@pytest.mark.parametrize(
    ("days", "named"),
    [(2_932_897, "10000-01-01"), (-719_163, "0000-12-31"), (2**31 - 1, "2147483647")],
)
def test_a_day_that_no_reader_knows_is_refused(tmp_path: Path, days: int, named: str) -> None:
    """The first and the last day of Python's calendar are valid partitions, and days outside it are refused."""
    known = [date.min, date.max]
    with task(tmp_path, "day") as open_task:
        for day in known:
            open_task.write(batch(range(1), day=day))
        found = [file.partition["day"] for file in open_task.finish()]
    beyond = pa.array([days, None], pa.int32()).cast(pa.date32())
    rows = batch(range(2)).set_column(3, "_3", beyond)

    assert found == ["0001-01-01", "9999-12-31"]
    with (
        raises(PartitionValueError, "day", named),
        task(tmp_path / "beyond", "day") as open_task,
    ):
        open_task.write(rows)
    assert names(tmp_path / "beyond") == []


def test_text_to_partition_by_is_utf8(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are refused as a partition value."""
    schema = pa.schema([("number", pa.int64()), ("place", pa.string())])
    text = pa.array([b"a", b"\xff\xfe"]).view(pa.string())
    with (
        raises(PartitionValueError, "place", "b'\\xff\\xfe'"),
        TaskFiles(file_system(str(tmp_path), {}), schema, ["place"], "part", "zstd") as open_task,
    ):
        open_task.write(pa.record_batch([pa.array([1, 2]), text], schema=schema))


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
            st.none() | st.datetimes(MOMENTS[0], MOMENTS[1]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_bounds_hold_every_value(rows: list[tuple[int | None, str | None, datetime | None]]) -> None:
    """Every value is within the column bounds in Delta's log, and nulls are counted."""
    schema = pa.schema([("number", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    columns = {name: [row[place] for row in rows] for place, name in enumerate(schema.names)}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), sink, row_group_size=3)
    found = json.loads(statistics_of(pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata, schema))

    assert found["numRecords"] == len(rows)
    assert found["nullCount"] == {name: values.count(None) for name, values in columns.items()}
    for name, values in columns.items():
        there = [value for value in values if value is not None]
        if name not in found["minValues"]:
            continue
        least, greatest = found["minValues"][name], found["maxValues"][name]
        if name == "at":
            least, greatest = (datetime.fromisoformat(end).replace(tzinfo=None) for end in (least, greatest))

        assert all(least <= value <= greatest for value in there)


def test_bounds_are_there_and_near() -> None:
    """The bounds of a column exist, and enclose its values closely."""
    long = "x" * 100
    moment = datetime(2026, 11, 22, 1, 2, 3, 456_001, tzinfo=UTC)

    assert (lower(5), upper(5)) == (5, 5)
    assert (lower("abc"), upper("abc")) == ("abc", "abc")
    assert lower(long) == "x" * 32
    assert long < upper(long) < "y"
    assert (lower(moment), upper(moment)) == ("2026-11-22T01:02:03.456Z", "2026-11-22T01:02:03.457Z")
    assert (lower(date(2026, 1, 2)), upper(date(2026, 1, 2))) == ("2026-01-02", "2026-01-02")


def test_a_worker_does_not_wait_for_pandas() -> None:
    """Writing files does not import pandas, which takes seconds in each worker."""
    program = """
import sys
import pyarrow as pa
from fairlead_spark.lake.files import TaskFiles
from fairlead_spark.lake.storage import file_system
zeros = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(bytes(24))])
batch = pa.RecordBatch.from_arrays([zeros] * 3, names=["a", "b", "c"])
with TaskFiles(file_system(sys.argv[1], {}), batch.schema, ["a", "b"], "part", "zstd") as files:
    files.write(batch)
    assert [file.rows for file in files.finish()] == [3]
print("pandas" in sys.modules)
"""
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program, folder], check=True, capture_output=True, text=True
        )

    assert done.stdout == "False\n"
