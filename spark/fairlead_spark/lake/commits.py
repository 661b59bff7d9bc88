"""One commit of a Delta table for what the tasks of a batch wrote, and never a second one for the same batch.

Delta's log holds, beside the files, the last version of each application. A query is an application and a batch is its
version, so a batch that Spark runs again, because the driver ended between this commit and Spark's own, is found there.

A commit that failed may be in the log all the same: the store's answer was lost. So no file is deleted on the word of
an exception. Which files are in the table is read from the table, and what cannot be read is left where it is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, Transaction, create_table_with_add_actions

from fairlead_spark.lake import storage
from fairlead_spark.lake.columns import SchemaMismatch, check_fits
from fairlead_spark.lake.statistics import are_enough, without_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlead_spark.lake.columns import Columns
    from fairlead_spark.lake.files import DataFile
    from fairlead_spark.lake.options import LakeOptions

logger = logging.getLogger(__name__)

# Other writers use the same table. Appends never conflict, and deltalake itself repeats them; repeated here are commits
# that met a new schema, another overwrite or the creation of the table.
ATTEMPTS_MAX = 20


class LakeCommitFailed(RuntimeError):
    """A batch could not be committed, and whether it is in the table is not known here; running it again tells."""


class Outcome(Enum):
    """What became of a batch."""

    COMMITTED = "committed"
    REPEATED = "repeated"
    """It was in the table before; its new files are gone again."""


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """What is to be one commit."""

    options: LakeOptions
    columns: Columns
    files: Sequence[DataFile]
    application: tuple[str, int] | None
    """Application id and version; None for a write that cannot be repeated."""
    now_ms: int
    """The time that the log gives for the files, milliseconds since the epoch."""
    overwrite: bool = False
    """Whether what the table held is removed by the same commit."""
    is_stream: bool = False
    """Whether the versions are micro-batches, of which Spark repeats the last one alone."""

    def run(self) -> Outcome:
        """Commit, unless this application's version is there; the table is made by the first commit.

        Raises `SchemaMismatch`, with the files deleted, and `LakeCommitFailed`, with the files left alone.
        """
        failures: list[Exception] = []
        while len(failures) < ATTEMPTS_MAX:
            table = self._table()
            try:
                if table is None:
                    self._create()
                    return Outcome.COMMITTED
                if self._is_there(table):
                    # Not the same as having failed before: here it may be this very commit whose answer was lost.
                    return (
                        Outcome.REPEATED
                        if delete_unlisted(self.options, self.files, table)
                        else Outcome.COMMITTED
                    )
                check_fits(table, self.columns, self.options.partition_by)
                if not self.files and not self.overwrite:
                    return Outcome.COMMITTED
                self._append(table)
            except SchemaMismatch:
                delete_unlisted(self.options, self.files, table)
                raise
            except CommitFailedError as error:
                failures.append(error)
            except DeltaError as error:
                if table is not None or self._table() is None:
                    raise
                # Another writer created the table in the meantime.
                failures.append(error)
            else:
                return Outcome.COMMITTED
        message = (
            f"{len(failures)} commits to {self.options.path} met other writers; the last: {failures[-1]}"
        )
        raise LakeCommitFailed(message) from failures[-1]

    def _table(self) -> DeltaTable | None:
        """Return the table as it is now, or None when there is none."""
        return open_table(self.options)

    def _is_there(self, table: DeltaTable) -> bool:
        """Whether the table holds this batch: by its number, or by one of its files, whose names are unique."""
        if self.application is not None:
            version = table.transaction_version(self.application[0])
            if self.is_stream and version is not None and version > self.application[1]:
                message = (
                    f"{self.options.path} has micro-batch {version} of this query, and this is {self.application[1]}: "
                    "the checkpoint is older than the table, so what this batch holds may be in it or not; begin with "
                    "a new checkpoint, from where the table ends"
                )
                raise LakeCommitFailed(message)
            return version is not None and version >= self.application[1]
        return any(file.path in listed(table) for file in self.files[:1])

    def _properties(self, retries: int | None = None) -> CommitProperties:
        transactions = None if self.application is None else [Transaction(*self.application)]
        return CommitProperties(max_commit_retries=retries, app_transactions=transactions)

    def _actions(self, properties: Mapping[str, str]) -> list[AddAction]:
        told = are_enough(len(self.columns.names), properties)
        return [
            AddAction(
                file.path,
                file.size,
                file.partition,
                self.now_ms,
                True,
                file.statistics if told else without_bounds(file.statistics),
            )
            for file in self.files
        ]

    def _create(self) -> None:
        """Make the table with the frame's schema; version 0 holds the first batch.

        Without deltalake's own retries: when another writer creates the table at the same moment, they put this commit
        on top of the other one without checking whether that holds the same batch.
        """
        create_table_with_add_actions(
            self.options.path,
            self.columns.schema,
            self._actions({}),
            mode="error",
            partition_by=list(self.options.partition_by),
            storage_options=self.options.storage_options,
            commit_properties=self._properties(retries=0),
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
    """Return the table as it is now, or None when there is none. Raises what the store's client raises."""
    try:
        return DeltaTable(options.path, storage_options=options.storage_options)
    except TableNotFoundError:
        return None


def listed(table: DeltaTable) -> set[str]:
    """Return the paths below the table of the files that its newest version holds."""
    return set(table.get_add_actions(flatten=True).column("path").to_pylist())


def delete_unlisted(options: LakeOptions, files: Sequence[DataFile], table: DeltaTable | None) -> bool:
    """Delete those of `files` that the table does not hold; say whether there were any, or none to look at."""
    held = listed(table) if table is not None and files else set()
    unlisted = [file.path for file in files if file.path not in held]
    storage.delete(storage.file_system(options.path, options.storage_options), unlisted)
    return len(unlisted) == len(files)


def sweep(options: LakeOptions, folders: Iterable[str], prefix: str, keep: Iterable[str] = ()) -> bool:
    """Delete the files directly in some folders whose names begin with `prefix`, except the ones to keep.

    For files of killed tasks. Only called when no commit with such files can follow. Returns whether none is left; a
    refusal of the store is logged.
    """
    system = storage.file_system(options.path, options.storage_options)
    kept = set(keep)
    try:
        found = [path for folder in folders for path in storage.names_in(system, folder)]
    except storage.STORE_ERRORS as error:
        logger.warning("%s: what killed tasks left could not be looked for: %s", options.path, error)
        return False
    left = [path for path in found if path.rpartition("/")[2].startswith(prefix) and path not in kept]
    return not storage.delete(system, left)


def folders_of(files: Iterable[DataFile]) -> frozenset[str]:
    """Return the folders below the table in which files lie."""
    return frozenset(file.path.rpartition("/")[0] for file in files)
