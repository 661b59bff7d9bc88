"""Commit of a batch's files to a Delta table, at most once for each batch.

In addition to the files, Delta's log contains the last version of each application. A query is recorded as an
application, and a batch as its version. If Spark repeats a batch, for example after the driver crashed between the
commit to the table and Spark's own commit, the log therefore shows that the batch was already committed.

A commit that failed may still be in the log if the store's answer was lost. An exception alone is therefore no
reason to delete files: the table is read to find which files it contains, and no file is deleted if the table cannot be
read.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, Transaction

from fairlead_spark.lake import storage
from fairlead_spark.lake.columns import SchemaMismatch, check_fits
from fairlead_spark.lake.statistics import are_enough, without_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlead_spark.lake.columns import Columns
    from fairlead_spark.lake.files import DataFile
    from fairlead_spark.lake.options import LakeOptions

logger = logging.getLogger(__name__)

# Maximum number of attempts to commit while other writers use the same table. Appends never conflict, and deltalake
# repeats appends itself. This module repeats commits that conflicted with a new schema, an overwrite or the creation of
# the table.
ATTEMPTS_MAX = 20


class LakeCommitFailed(RuntimeError):
    """The commit of a batch failed, and the table may contain the batch; a repeated commit checks this."""


class Outcome(Enum):
    """Result of a commit."""

    COMMITTED = "committed"
    REPEATED = "repeated"
    """The table already contained the batch, so the new files are deleted."""


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """The data of one commit to a table."""

    options: LakeOptions
    columns: Columns
    files: Sequence[DataFile]
    application: tuple[str, int] | None
    """Application id and version; None for a write whose repetition cannot be detected."""
    now_ms: int
    """Time that the log records for the files, in milliseconds since the epoch."""
    overwrite: bool = False
    """Whether the commit replaces all existing records of the table."""
    is_stream: bool = False
    """Whether the versions are numbers of micro-batches; Spark repeats only the last micro-batch."""

    def run(self) -> Outcome:
        """Create the table if it is missing, and commit unless the table already has this version of the application.

        Raises `SchemaMismatch` after deleting the files, and `LakeCommitFailed` without deleting the files.
        """
        failures: list[Exception] = []
        while len(failures) < ATTEMPTS_MAX:
            table = self._table()
            try:
                if table is None:
                    self._create()
                    continue
                if self._is_there(table):
                    # The table may also contain the batch because an earlier attempt of this commit succeeded and its
                    # answer was lost.
                    return (
                        Outcome.REPEATED
                        if delete_unlisted(self.options, self.files, table)
                        else Outcome.COMMITTED
                    )
                missing = check_fits(
                    table, self.columns, self.options.partition_by, merge=self.options.merge_schema
                )
                if not self.files and not self.overwrite:
                    return Outcome.COMMITTED
                if missing:
                    # The commit of the files checks the batch again: another driver may have committed the batch.
                    table.alter.add_columns(missing)
                    continue
                self._append(table)
            except SchemaMismatch:
                delete_unlisted(self.options, self.files, table)
                raise
            except CommitFailedError as error:
                failures.append(error)
            except DeltaError as error:
                if table is not None or self._table() is None:
                    raise
                # Another writer has created the table at the same time.
                failures.append(error)
            else:
                return Outcome.COMMITTED
        message = (
            f"{len(failures)} commits to {self.options.path} conflicted with other writers; "
            f"the last: {failures[-1]}"
        )
        raise LakeCommitFailed(message) from failures[-1]

    def _table(self) -> DeltaTable | None:
        """Return the newest version of the table; None if the table does not exist."""
        return open_table(self.options)

    def _is_there(self, table: DeltaTable) -> bool:
        """Return whether the table contains this batch, by its version or by one of its uniquely named files."""
        if self.application is not None:
            version = table.transaction_version(self.application[0])
            if self.is_stream and version is not None and version > self.application[1]:
                message = (
                    f"{self.options.path} has micro-batch {version} of this query, but this is {self.application[1]}: "
                    "the checkpoint is older than the table, so the table may or may not contain the records of this "
                    "batch; start with a new checkpoint at the end of the table"
                )
                raise LakeCommitFailed(message)
            return version is not None and version >= self.application[1]
        return any(file.path in listed(table) for file in self.files[:1])

    def _properties(self) -> CommitProperties:
        transactions = None if self.application is None else [Transaction(*self.application)]
        return CommitProperties(app_transactions=transactions)

    def _actions(self, properties: Mapping[str, str]) -> list[AddAction]:
        bounded = are_enough(len(self.columns.names), properties)
        return [
            AddAction(
                file.path,
                file.size,
                file.partition,
                self.now_ms,
                True,
                file.statistics if bounded else without_bounds(file.statistics),
            )
            for file in self.files
        ]

    def _create(self) -> None:
        """Create the empty table with the schema of the data frame.

        The files follow in a separate commit, which the history of the table shows as a write. deltalake's own
        retries are disabled: if another writer creates the table concurrently, a retry would put a second creation on
        top of that writer's commits.
        """
        if self.is_stream and not self.options.partition_by:
            logger.warning(
                "%s is created without partitions, which cannot be added later: for a table with partitions, set the "
                "option partitionBy, or call fairlead_spark.pass_partition_by(spark) before partitionBy(), whose "
                "columns Spark drops otherwise",
                self.options.path,
            )
        DeltaTable.create(
            self.options.path,
            self.columns.schema,
            mode="error",
            partition_by=list(self.options.partition_by),
            storage_options=self.options.storage_options,
            commit_properties=CommitProperties(max_commit_retries=0),
        )

    def _append(self, table: DeltaTable) -> None:
        table.create_write_transaction(
            [*self._actions(table.metadata().configuration)],
            mode="overwrite" if self.overwrite else "append",
            schema=table.schema(),
            partition_by=list(self.options.partition_by),
            commit_properties=self._properties(),
        )


def open_table(options: LakeOptions) -> DeltaTable | None:
    """Return the newest version of a table; None if the table does not exist.

    Raises the errors of the store's client.
    """
    try:
        return DeltaTable(options.path, storage_options=options.storage_options)
    except TableNotFoundError:
        return None


def listed(table: DeltaTable) -> set[str]:
    """Return the relative paths of the files in the newest version of the table."""
    return set(table.get_add_actions(flatten=True).column("path").to_pylist())


def delete_unlisted(options: LakeOptions, files: Sequence[DataFile], table: DeltaTable | None) -> bool:
    """Delete the given files that the table does not list; return whether the table lists none of `files`."""
    held = listed(table) if table is not None and files else set()
    unlisted = [file.path for file in files if file.path not in held]
    storage.delete(storage.file_system(options.path, options.storage_options), unlisted)
    return len(unlisted) == len(files)


def sweep(options: LakeOptions, folders: Iterable[str], prefix: str, keep: Iterable[str] = ()) -> bool:
    """Delete the files in the given folders whose names begin with `prefix`, except those in `keep`.

    Killed tasks leave uncommitted files. The function must only be called if no later commit can list these files.
    Returns whether all files were deleted; a refusal by the store is logged.
    """
    system = storage.file_system(options.path, options.storage_options)
    kept = set(keep)
    try:
        found = [path for folder in folders for path in storage.names_in(system, folder)]
    except storage.STORE_ERRORS as error:
        logger.warning("%s: files of killed tasks could not be listed: %s", options.path, error)
        return False
    left = [path for path in found if path.rpartition("/")[2].startswith(prefix) and path not in kept]
    return not storage.delete(system, left)


def folders_of(files: Iterable[DataFile]) -> frozenset[str]:
    """Return the relative folders of the files."""
    return frozenset(file.path.rpartition("/")[0] for file in files)
