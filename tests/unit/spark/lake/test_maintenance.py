"""Compaction and vacuum of a table by the query that writes it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableOptimizer

from fairlead_spark.lake.columns import columns_of
from fairlead_spark.lake.commits import BatchCommit, Outcome
from fairlead_spark.lake.files import DataFile, TaskFiles
from fairlead_spark.lake.maintenance import VACUUM_SECONDS_MIN, is_due, maintain
from fairlead_spark.lake.options import LakeOptions
from fairlead_spark.lake.storage import file_system

if TYPE_CHECKING:
    import pytest

FIELD = {"name": "number", "type": "long", "nullable": True, "metadata": {}}


def options(path: Path, **rest: Any) -> LakeOptions:
    """Return the options of a table that is compacted after every second batch."""
    return LakeOptions(str(path), compact_every=2, **rest)


def task_files(path: Path, numbers: range, name: str = "part") -> list[DataFile]:
    """Write a file of a task."""
    schema = pa.schema([("number", pa.int64())])
    with TaskFiles(file_system(str(path), {}), schema, [], name, "zstd") as files:
        files.write(pa.record_batch([pa.array(numbers)], schema=schema))
        return files.finish()


def commit(path: Path, files: list[DataFile], batch: int) -> Outcome:
    """Commit files as a batch of one query."""
    columns = columns_of({"type": "struct", "fields": [FIELD]}, [])
    return BatchCommit(LakeOptions(str(path)), columns, files, ("query", batch), 1_000).run()


def numbers_in(path: Path) -> list[int]:
    """Return the numbers in the newest version of a table."""
    return sorted(DeltaTable(path).to_pyarrow_table()["number"].to_pylist())


def test_small_files_are_joined_and_a_repeated_batch_stays_known(tmp_path: Path) -> None:
    """A compaction keeps every record in fewer files, and the table still contains the numbers of its batches."""
    for batch in range(4):
        commit(tmp_path, task_files(tmp_path, range(batch, batch + 1), f"batch-{batch}"), batch)
    maintain(options(tmp_path), 0.0)
    again = commit(tmp_path, task_files(tmp_path, range(3, 4), "again"), 3)

    assert [is_due(options(tmp_path), batch) for batch in range(4)] == [False, True, False, True]
    assert not is_due(LakeOptions(str(tmp_path)), 1)
    assert again is Outcome.REPEATED
    assert numbers_in(tmp_path) == [0, 1, 2, 3]
    assert len(DeltaTable(tmp_path).file_uris()) == 1


def test_old_files_without_a_table_are_deleted_once_a_day(tmp_path: Path) -> None:
    """A vacuum, at most once a day, deletes old files outside the table, and keeps new files and files of the table."""
    commit(tmp_path, task_files(tmp_path, range(3)), 0)
    kept = task_files(tmp_path, range(3), "new")
    for name, at in (("first", 0.0), ("second", 1.0), ("third", VACUUM_SECONDS_MIN)):
        (old,) = task_files(tmp_path, range(3), name)
        os.utime(tmp_path / old.path, (time.time() - 200 * 3600,) * 2)
        maintain(options(tmp_path, vacuum_hours=168), at)

        assert (tmp_path / old.path).exists() == (name == "second"), name
    assert (tmp_path / kept[0].path).exists()
    assert numbers_in(tmp_path) == [0, 1, 2]


def test_a_refused_compaction_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A compaction that conflicts with another writer is logged, and a missing table is not an error."""

    def refuse(*_args: object, **_rest: object) -> None:
        raise CommitFailedError("another writer")

    maintain(options(tmp_path / "absent"), 0.0)
    commit(tmp_path, task_files(tmp_path, range(3)), 0)
    monkeypatch.setattr(TableOptimizer, "compact", refuse)
    maintain(options(tmp_path), 0.0)

    assert "another writer" in caplog.text
