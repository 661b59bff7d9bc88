"""History of all keys since the last compaction, in one SQLite file.

Only `embedded` calls this module, from one thread. The history is synchronous. The history stores the lease id of each
key, but neither leases nor watches. A row describes one key at one revision, and the row of a deletion has no value.
Each row contains a checksum, since SQLite has no checksums outside the write-ahead log.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

import google_crc32c

from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.protocol import (
    Compacted,
    CoordinationUnavailable,
    DeleteEvent,
    FutureRevision,
    LeaseNotFound,
    Page,
    PutEvent,
    UnknownOutcome,
    WatchBatch,
    prefix_end,
)
from fairlead_broker.coordination.store_file import StoreDamaged, StoreLock, StoreTooNew
from fairlead_broker.registry.store_writes import (
    Compare,
    CreateRevision,
    Delete,
    Get,
    KeyValue,
    LeaseId,
    ModRevision,
    Operation,
    Put,
    Relation,
    TransactionResult,
)

FORMAT: Final = 1
APPLICATION_ID: Final = 0x464C4344
"""Application id in the header of the file. A file with another id is the database of another program and is
refused.
"""
EVENT_REVISIONS_MAX: Final = 64
"""Maximum number of revisions that are read at once for a watch that lags. The limit bounds the memory of the watch."""
_ABOVE_ALL_KEYS: Final = "\U0010ffff"
_NO_LEASE: Final = 0
_DAMAGE_CODES: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_SCHEMA: Final = (
    "PRAGMA auto_vacuum = INCREMENTAL",
    "PRAGMA journal_mode = WAL",
    "BEGIN IMMEDIATE",
    """CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        revision INTEGER NOT NULL,
        create_revision INTEGER NOT NULL,
        lease_id INTEGER NOT NULL,
        value BLOB,
        crc32c INTEGER NOT NULL
    )""",
    "CREATE UNIQUE INDEX history_by_key ON history (key, revision)",
    "CREATE INDEX history_by_revision ON history (revision)",
    "CREATE TABLE store (compacted INTEGER NOT NULL, life INTEGER NOT NULL)",
    "INSERT INTO store VALUES (0, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
    "COMMIT",
)
_LATEST: Final = """SELECT key, revision, create_revision, lease_id, value, crc32c FROM history
    WHERE key = ? ORDER BY revision DESC LIMIT 1"""
_PAGE: Final = """SELECT key, revision, create_revision, lease_id, value, crc32c FROM history AS h
    WHERE h.key >= ? AND h.key < ? AND h.key > ? AND h.value IS NOT NULL
    AND h.revision = (SELECT max(revision) FROM history WHERE key = h.key AND revision <= ?)
    ORDER BY h.key LIMIT ?"""
_LEASED: Final = """SELECT key FROM history AS h WHERE h.lease_id != 0 AND h.value IS NOT NULL
    AND h.revision = (SELECT max(revision) FROM history WHERE key = h.key) ORDER BY h.key"""
_LAST_OF_CHUNK: Final = """SELECT max(revision) FROM (SELECT DISTINCT revision FROM history
    WHERE revision >= ? AND key >= ? AND key < ? ORDER BY revision LIMIT ?)"""
_EVENTS: Final = """SELECT key, revision, create_revision, lease_id, value, crc32c FROM history
    WHERE revision BETWEEN ? AND ? AND key >= ? AND key < ? ORDER BY revision, id"""
_INSERT: Final = """INSERT INTO history (key, revision, create_revision, lease_id, value, crc32c)
    VALUES (?, ?, ?, ?, ?, ?)"""
_DROP_SUPERSEDED: Final = """DELETE FROM history WHERE revision < :revision AND EXISTS (
    SELECT 1 FROM history AS newer
    WHERE newer.key = history.key AND newer.revision > history.revision AND newer.revision <= :revision)"""
_DROP_TOMBSTONES: Final = "DELETE FROM history WHERE revision < ? AND value IS NULL"

Row: TypeAlias = tuple[str, int, int, int, bytes | None, int]


@dataclass(frozen=True, slots=True)
class EventChunk:
    """Events of a prefix, read for one watch."""

    batches: tuple[WatchBatch, ...]
    next_revision: Revision
    """Revision from which the watch continues."""
    revision: Revision
    """Revision of the store at the time of the read."""


@dataclass(frozen=True, slots=True)
class Applied:
    """Effect of a transaction."""

    result: TransactionResult
    branch: Sequence[Operation]
    changed: tuple[str, ...]
    """Keys that the transaction changed. The tuple is empty if the transaction created no revision."""


class History:
    """The open history file. After a disk error, every call is refused until the file is opened again."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. All keys whose leases date from earlier runs are removed in one revision.

        Raises `StoreHeld`, `StoreInaccessible`, `StoreDamaged` and `StoreTooNew`.
        """
        self._path = path
        self._failure: str | None = None
        self.revision = Revision(1)
        """Revision of the last change, which is 1 in an empty store."""
        self.compacted = Revision(0)
        """Compacted revision. Revision below which lists and watches are refused."""
        self.life = 0
        """Number of times that the file was opened."""
        self._lock = StoreLock(path)
        try:
            self._connection = self._open()
        except BaseException:
            self._lock.release()
            raise

    @property
    def has_failed(self) -> bool:
        """Whether every call is refused until the file is opened again."""
        return self._failure is not None

    def close(self) -> None:
        """Write the write-ahead log back into the file, and release the lock for other processes."""
        self._connection.close()
        self._lock.release()

    def page(self, prefix: str, revision: Revision | None, after: str | None, limit: int) -> Page:
        """Read a page of a list (see `Coordination.list`)."""
        self._refuse_failed()
        at = self._readable(revision)
        start, stop = _range(prefix)
        rows = self._read(_PAGE, (start, stop, after or "", at, limit + 1))
        items = tuple(_item(row) for row in rows[:limit])
        return Page(items, at, items[-1].key if len(rows) > limit else None)

    def events(self, prefix: str, from_revision: Revision) -> EventChunk:
        """Read the next events of a watch, in whole revisions. Raises `Compacted`."""
        self._refuse_failed()
        if from_revision < self.compacted:
            raise Compacted(self.compacted)
        start, stop = _range(prefix)
        [(last,)] = self._query(_LAST_OF_CHUNK, (from_revision, start, stop, EVENT_REVISIONS_MAX))
        if last is None:
            return EventChunk((), Revision(max(from_revision, self.revision + 1)), self.revision)
        rows = self._read(_EVENTS, (from_revision, last, start, stop))
        batches = tuple(
            WatchBatch(Revision(revision), tuple(_event(row) for row in group))
            for revision, group in groupby(rows, key=lambda row: row[1])
        )
        return EventChunk(batches, Revision(last + 1), self.revision)

    def transact(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation],
        leases: Container[LeaseId],
    ) -> Applied:
        """Run a transaction that is within the limits (see `Coordination.transact`)."""
        self._refuse_failed()
        succeeded = all(_holds(compare, self._latest(compare.key)) for compare in compares)
        branch = success if succeeded else failure
        for operation in branch:
            if (
                isinstance(operation, Put)
                and operation.lease_id is not None
                and operation.lease_id not in leases
            ):
                raise LeaseNotFound(operation.lease_id)
        reads, changed = self._apply(branch)
        deletes = {operation.key for operation in branch if isinstance(operation, Delete)}
        result = TransactionResult(succeeded, self.revision, tuple(reads), len(deletes.intersection(changed)))
        return Applied(result, branch, tuple(changed))

    def delete(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Remove the keys of an ended lease in one revision, and return the removed keys."""
        self._refuse_failed()
        _, changed = self._apply([Delete(key) for key in keys])
        return tuple(changed)

    def compact(self, revision: Revision) -> None:
        """Delete the rows that only lists and watches below a revision need."""
        self._refuse_failed()
        if revision > self.revision:
            raise FutureRevision(revision, self.revision)
        if revision <= self.compacted:
            return

        def forget() -> None:
            self._connection.execute(_DROP_SUPERSEDED, {"revision": revision})
            self._connection.execute(_DROP_TOMBSTONES, (revision,))
            self._connection.execute("UPDATE store SET compacted = ?", (revision,))

        self._write(forget)
        self.compacted = revision
        self._query("PRAGMA incremental_vacuum", ())

    def _open(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            # Only the owner may read the store of a cluster. SQLite gives the write-ahead log the same permissions as
            # the file.
            self._path.touch(mode=0o600)
            with suppress(PermissionError):
                self._path.chmod(0o600)
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=True)
            # The exclusive mode also keeps the index of the write-ahead log in memory. Without the exclusive mode, the
            # index would be in a shared memory file, which network volumes do not support.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA synchronous = FULL")
            self._check_format(connection)
            connection.execute("PRAGMA journal_size_limit = 16777216")
            self._connection = connection
            self._begin_life()
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error | OSError):
                self._raise_opening(error)
            raise
        return connection

    def _check_format(self, connection: sqlite3.Connection) -> None:
        [(version,)] = connection.execute("PRAGMA user_version").fetchall()
        [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        [(application_id,)] = connection.execute("PRAGMA application_id").fetchall()
        if (version, tables) == (0, 0):
            for statement in _SCHEMA:
                connection.execute(statement)
            return
        if application_id != APPLICATION_ID:
            raise StoreDamaged(self._path, "it is a database of another program")
        if version > FORMAT:
            raise StoreTooNew(self._path, version, FORMAT)
        [(verdict,), *_] = connection.execute("PRAGMA quick_check(1)").fetchall()
        if verdict != "ok":
            raise StoreDamaged(self._path, str(verdict))

    def _begin_life(self) -> None:
        [(self.compacted, self.life)] = self._query("SELECT compacted, life FROM store", ())
        [(last,)] = self._query("SELECT coalesce(max(revision), 1) FROM history", ())
        self.revision = Revision(last)
        self.life += 1
        self._write(lambda: self._connection.execute("UPDATE store SET life = ?", (self.life,)))
        self.delete([key for (key,) in self._query(_LEASED, ())])

    def _apply(self, branch: Sequence[Operation]) -> tuple[list[KeyValue | None], list[str]]:
        """Run the operations of a branch. A branch that changes no key writes no rows and creates no revision."""
        revision = Revision(self.revision + 1)
        reads: list[KeyValue | None] = []
        rows: dict[str, Row] = {}
        for operation in branch:
            before = self._latest(operation.key)
            match operation:
                case Put(key, value, lease_id):
                    created = before.create_revision if before else revision
                    rows[key] = _row(key, revision, created, lease_id or _NO_LEASE, value)
                case Delete(key) if before:
                    rows[key] = _row(key, revision, before.create_revision, _NO_LEASE, None)
                case Delete():
                    pass
                case Get(key):
                    reads.append(_live_item(rows[key]) if key in rows else before)
        if rows:
            self._write(lambda: self._insert(rows.values()))
            self.revision = revision
        return reads, list(rows)

    def _insert(self, rows: Iterable[Row]) -> None:
        self._connection.executemany(_INSERT, rows)

    def _latest(self, key: str) -> KeyValue | None:
        rows = self._read(_LATEST, (key,))
        return _live_item(rows[0]) if rows else None

    def _readable(self, revision: Revision | None) -> Revision:
        if revision is None:
            return self.revision
        if revision > self.revision:
            raise FutureRevision(revision, self.revision)
        if revision < self.compacted:
            raise Compacted(self.compacted)
        return revision

    def _read(self, statement: str, parameters: tuple[object, ...]) -> list[Row]:
        rows: list[Row] = self._query(statement, parameters)
        for row in rows:
            if row[5] != _checksum(*row[:5]):
                self._failure = f"the checksum of {row[0]} at revision {row[1]} does not match"
                raise StoreDamaged(self._path, self._failure)
        return rows

    # SQLite returns each row with the types of its columns. Each caller declares the row type of its query.
    def _query(self, statement: str, parameters: tuple[object, ...]) -> list[tuple]:  # type: ignore[type-arg]
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            self._raise_definite(error)

    def _write(self, change: Callable[[], object]) -> None:
        """Apply a change in one durable SQLite transaction.

        `CoordinationUnavailable` means that the change was not applied.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            change()
        except sqlite3.Error as error:
            self._roll_back()
            self._raise_definite(error)
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if _code(error) == sqlite3.SQLITE_FULL:
                self._raise_definite(error)
            # A failed write or sync may have left changes in the write-ahead log that would be valid at the next
            # start.
            self._failure = f"writing {self._path} failed: {error}"
            raise UnknownOutcome(self._failure) from error

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._failure = f"rolling back in {self._path} failed: {error}"

    def _raise_definite(self, error: sqlite3.Error) -> NoReturn:
        if _code(error) in _DAMAGE_CODES:
            self._failure = str(error)
            raise StoreDamaged(self._path, str(error)) from error
        message = f"{self._path} cannot be used: {error}"
        if _code(error) != sqlite3.SQLITE_FULL:
            self._failure = message
        raise CoordinationUnavailable(message) from error

    def _raise_opening(self, error: sqlite3.Error | OSError) -> NoReturn:
        if _code(error) in _DAMAGE_CODES or _code(error) == sqlite3.SQLITE_ERROR:
            raise StoreDamaged(self._path, str(error)) from error
        message = f"{self._path} cannot be opened: {error}"
        raise CoordinationUnavailable(message) from error

    def _refuse_failed(self) -> None:
        if self._failure is not None:
            message = f"{self._failure}; the store stays closed until the broker is restarted"
            raise CoordinationUnavailable(message)


def _code(error: sqlite3.Error | OSError) -> int:
    """Return the primary result code of an SQLite error (the low byte of an extended code), or `SQLITE_MISUSE`."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE) & 0xFF


def _holds(compare: Compare, item: KeyValue | None) -> bool:
    match compare:
        case CreateRevision(_, relation, revision):
            return _relates(relation, item.create_revision if item else 0, revision)
        case ModRevision(_, relation, revision):
            return _relates(relation, item.mod_revision if item else 0, revision)
        case _:
            return item is not None and _relates(compare.relation, item.value, compare.value)


def _relates(relation: Relation, left: int | bytes, right: int | bytes) -> bool:
    # `order` is 0 for equal values. `left` and `right` have the same type.
    order = (left > right) - (left < right)  # type: ignore[operator]
    match relation:
        case Relation.EQUAL:
            return order == 0
        case Relation.NOT_EQUAL:
            return order != 0
        case Relation.GREATER:
            return order > 0
        case Relation.LESS:
            return order < 0


def _range(prefix: str) -> tuple[str, str]:
    return prefix, prefix_end(prefix) or _ABOVE_ALL_KEYS


def _row(key: str, revision: int, create_revision: int, lease_id: int, value: bytes | None) -> Row:
    return (
        key,
        revision,
        create_revision,
        lease_id,
        value,
        _checksum(key, revision, create_revision, lease_id, value),
    )


def _checksum(key: str, revision: int, create_revision: int, lease_id: int, value: bytes | None) -> int:
    fixed = struct.pack("<qqq?", revision, create_revision, lease_id, value is None)
    return int(google_crc32c.value(b"\0".join((fixed, key.encode(), value or b""))))


def _item(row: Row) -> KeyValue:
    key, revision, create_revision, lease_id, value, _ = row
    assert value is not None, f"{key} at revision {revision} is a deletion"
    lease = LeaseId(lease_id) if lease_id else None
    return KeyValue(key, value, Revision(create_revision), Revision(revision), lease)


def _live_item(row: Row) -> KeyValue | None:
    return None if row[4] is None else _item(row)


def _event(row: Row) -> PutEvent | DeleteEvent:
    item = _live_item(row)
    return DeleteEvent(row[0]) if item is None else PutEvent(item)
