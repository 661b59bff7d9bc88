"""A committed batch stays committed when its clean-up fails, and the clean-up is retried."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pytest

from refusals import raises

pytest.importorskip("pyspark.sql.datasource", reason="the sink needs the extra spark")

from deltalake import DeltaTable

from fairlead_spark.lake import storage
from fairlead_spark.lake.columns import SchemaMismatch, columns_of
from fairlead_spark.lake.files import DataFile, TaskFiles
from fairlead_spark.lake.options import LakeOptions
from fairlead_spark.lake.writers import LakeStreamWriter, WrittenFiles, file_prefix

SCHEMA = pa.schema([("number", pa.int64()), ("day", pa.string())])
FRAME = {
    "type": "struct",
    "fields": [{"name": "number", "type": "long"}, {"name": "day", "type": "string"}],
}


class Guarded(pyarrow.fs.SubTreeFileSystem):
    """A folder that can refuse deletions and listings, like an object store with limited rights."""

    may_delete = True
    may_list = True
    asked = 0
    """Number of attempted deletions, including refused ones."""

    def delete_file(self, path: str) -> None:
        """Delete a file, or refuse the deletion."""
        self.asked += 1
        if not self.may_delete:
            raise PermissionError(path)
        super().delete_file(path)

    def get_file_info(self, paths: Any) -> Any:
        """Return file information, or refuse."""
        if not self.may_list:
            message = "listing is refused"
            raise PermissionError(message)
        return super().get_file_info(paths)


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    """Return the file system of the table in this test's folder."""
    system = Guarded(str(tmp_path), pyarrow.fs.LocalFileSystem())
    monkeypatch.setitem(storage._file_systems, (os.getpid(), str(tmp_path), ()), system)
    return system


def write(path: Path, batch: int, name: str) -> WrittenFiles:
    """Write a file as a task of a batch does, with the name of the query's run in the file name."""
    prefix = file_prefix("query", batch)
    with TaskFiles(storage.file_system(str(path), {}), SCHEMA, ["day"], f"{prefix}{name}", "zstd") as files:
        files.write(pa.record_batch([pa.array([batch]), pa.array(["mon"])], schema=SCHEMA))
        return WrittenFiles("query", f"{path} {batch}", 0, files.finish())


def writer(path: Path, schema: dict[str, Any] = FRAME) -> LakeStreamWriter:
    """Return the writer of a stream, as Spark creates it for each batch."""
    return LakeStreamWriter(LakeOptions(str(path), ("day",)), columns_of(schema, ("day",)), False)


def names(path: Path) -> set[str]:
    """Return every file of the table's folders."""
    return {found.name for found in path.rglob("*.parquet")}


def name_of(written: WrittenFiles) -> str:
    """Return the name of the only file that a task wrote."""
    [file] = written.files
    assert isinstance(file, DataFile)
    return Path(file.path).name


@pytest.mark.parametrize("forbidden", ["may_delete", "may_list"])
def test_a_committed_batch_stays_committed_and_its_rests_go_with_the_next(
    tmp_path: Path, guarded: Guarded, caplog: pytest.LogCaptureFixture, forbidden: str
) -> None:
    """A commit whose clean-up is refused succeeds with a warning, and the next commit cleans up."""
    left, kept = write(tmp_path, 0, "killed"), write(tmp_path, 0, "done")
    setattr(guarded, forbidden, False)
    with caplog.at_level(logging.WARNING):
        writer(tmp_path).commit([kept], 0)
    after_first = names(tmp_path)
    setattr(guarded, forbidden, True)
    second = write(tmp_path, 1, "done")
    writer(tmp_path).commit([second], 1)

    assert after_first == {name_of(left), name_of(kept)}
    assert caplog.records
    assert names(tmp_path) == {name_of(kept), name_of(second)}
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["number"].to_pylist()) == [0, 1]


def test_a_commit_tries_refused_sweeps_until_one_is_refused_again(tmp_path: Path, guarded: Guarded) -> None:
    """A commit retries earlier sweeps until one is refused again, so that refusals do not delay the commit."""
    guarded.may_delete = False
    batches = range(6)
    left = [write(tmp_path, batch, "killed") for batch in batches]
    kept = [write(tmp_path, batch, "done") for batch in batches]
    asked = []
    for batch in batches:
        before = guarded.asked
        writer(tmp_path).commit([kept[batch]], batch)
        asked.append(guarded.asked - before)
    refused = names(tmp_path)
    guarded.may_delete = True
    last = write(tmp_path, 6, "done")
    writer(tmp_path).commit([last], 6)

    # A commit attempts to delete the leftover file of its own batch, and one file of an earlier batch.
    assert asked == [1, 2, 2, 2, 2, 2]
    assert refused == {name_of(each) for each in [*left, *kept]}
    assert names(tmp_path) == {name_of(each) for each in [*kept, last]}


def test_a_refused_deletion_hides_neither_a_repeat_nor_a_refused_frame(
    tmp_path: Path, guarded: Guarded
) -> None:
    """A refused deletion hides neither a repeated batch nor the reason why a frame was refused."""
    writer(tmp_path).commit([write(tmp_path, 0, "done")], 0)
    guarded.may_delete = False
    writer(tmp_path).commit([write(tmp_path, 0, "again")], 0)
    other = {"type": "struct", "fields": [*FRAME["fields"], {"name": "more", "type": "long"}]}

    with raises(SchemaMismatch, "more"):
        writer(tmp_path, other).commit([write(tmp_path, 1, "done")], 1)
    assert DeltaTable(tmp_path).to_pyarrow_table()["number"].to_pylist() == [0]


def test_a_batch_that_failed_is_given_up_without_an_error_of_its_own(
    tmp_path: Path, guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that refuses deletions, or an unreadable table, does not hide the error that made a batch fail."""
    written = write(tmp_path, 0, "done")
    guarded.may_delete = False
    with caplog.at_level(logging.WARNING):
        writer(tmp_path).abort([written, None], 0)
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020}.json").write_text("no log")
    guarded.may_delete = True
    with caplog.at_level(logging.WARNING):
        writer(tmp_path).abort([written, None], 0)

    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "1 unused files could not be deleted",
        f"{tmp_path} cannot be read, so no files are deleted",
    ]
    assert names(tmp_path) == {name_of(written)}
