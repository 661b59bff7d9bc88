"""The promises of every coordination store: etcd's model, reduced to the parts that Fairlead uses.

For the implementations (`embedded`, `etcd`), which must pass one conformance suite, and for all readers and writers of
keys. No I/O here. The model: one sequence of revisions; a transaction with a change takes the next revision, as a
whole; history stays readable and watchable until it is compacted; leases detect that a process is gone, and only a
compare decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeAlias

from fairlead_api.identifiers import Revision
from fairlead_broker.registry.transactions import (
    Compare,
    Get,
    KeyValue,
    LeaseId,
    Operation,
    Put,
    TransactionResult,
    Value,
)

OPERATIONS_MAX: Final = 128
"""Compares, operations on success and operations on failure of one transaction, each counted alone (etcd's
`--max-txn-ops`)."""
REQUEST_BYTES_MAX: Final = 1_572_864
"""Bytes of one transaction (etcd's `--max-request-bytes`: 1.5 MiB)."""
OPERATION_OVERHEAD_BYTES: Final = 64
"""Counted for each compare and operation beside its key and value; above what protobuf needs, so that what one
implementation takes the other takes too."""
PAGE_KEYS_MAX: Final = 1000
"""Keys in one page of a list unless the caller asks for fewer."""


class CoordinationError(Exception):
    """Anything that a coordination store refuses or fails to do."""


class CoordinationUnavailable(CoordinationError):
    """The store could not be reached or has failed. A transaction that raised this was definitely not applied."""


class CoordinationClosed(CoordinationUnavailable):
    """This client was closed."""


class CoordinationRefused(CoordinationUnavailable):
    """The store does not take this client, and trying again does not help."""


class UnknownOutcome(CoordinationError):
    """The transaction may have been applied, may still be applied later, or neither (protocol section 3, rule 4).

    Reading an unchanged key proves nothing. Only a definite answer or a key with a higher mod revision does.
    """


class Compacted(CoordinationError):
    """The revision asked for is older than the history that is kept. List again, then watch from there."""

    def __init__(self, revision: Revision) -> None:
        super().__init__(f"history before revision {revision} is compacted")
        self.revision = revision
        """The oldest revision that can still be read."""


class FutureRevision(CoordinationError):
    """The revision asked for has not happened yet."""

    def __init__(self, asked: int, current: Revision) -> None:
        super().__init__(f"revision {asked} is ahead of the current revision {current}")
        self.current = current


class TransactionTooLarge(CoordinationError):
    """A limit of section 3, rule 6 is exceeded. Nothing was applied; the caller sends fewer at a time."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"a transaction with {size} {what} exceeds the limit of {limit}")
        self.what = what
        self.size = size
        self.limit = limit


class LeaseNotFound(CoordinationError):
    """The lease has expired, was revoked, or never existed. Its keys are gone or going."""

    def __init__(self, lease_id: LeaseId) -> None:
        super().__init__(f"lease {lease_id} does not exist any more")
        self.lease_id = lease_id


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list. All pages of one list are read at one revision."""

    items: tuple[KeyValue, ...]
    """In the byte order of their keys."""
    revision: Revision
    """The revision that was read. Pass it with `after` to get the next page."""
    next: str | None
    """What to pass as `after`; None on the last page."""


@dataclass(frozen=True, slots=True)
class PutEvent:
    """A key was set."""

    item: KeyValue


@dataclass(frozen=True, slots=True)
class DeleteEvent:
    """A key was removed."""

    key: str


Event: TypeAlias = PutEvent | DeleteEvent


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """All events of one revision under the watched prefix; none of them in a progress answer.

    Every event under the prefix with a revision up to this one has been delivered once a batch is.
    """

    revision: Revision
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease: its keys are removed unless it is kept alive."""

    lease_id: LeaseId
    ttl_seconds: int


class Watch(Protocol):
    """Events of a prefix in the order of their revisions, each once, none left out.

    Iteration ends when `cancel` was called. It raises `Compacted` when events were lost to compaction,
    `CoordinationClosed` when the client was closed and `CoordinationUnavailable` when the watch broke.
    Cancelling a task that waits for the next batch loses nothing.
    """

    def __aiter__(self) -> AsyncIterator[WatchBatch]: ...

    async def __anext__(self) -> WatchBatch: ...

    async def request_progress(self) -> None:
        """Ask for a batch without events once everything up to the store's revision has been delivered."""
        ...

    async def cancel(self) -> None:
        """End the watch and release its resources."""
        ...


class Coordination(Protocol):
    """One client of a store. Every method may raise `CoordinationUnavailable`.

    Keys are ASCII text, not empty; the order of keys is that of their bytes.
    """

    async def list(
        self,
        prefix: str,
        *,
        revision: Revision | None = None,
        after: str | None = None,
        limit: int = PAGE_KEYS_MAX,
    ) -> Page:
        """Read the keys under a prefix, as of a revision or as of now.

        Raises `Compacted` below the kept history and `FutureRevision` above the current revision.
        """
        ...

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        """Follow a prefix from a revision on, that one included; it may be one that is still to come."""
        ...

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Apply `success` if every compare holds, else `failure`, in one step.

        Raises `TransactionTooLarge`, `LeaseNotFound` (a put named a dead lease; nothing was applied) and
        `UnknownOutcome`. A key may be changed only once in a branch (`ValueError`).
        """
        ...

    async def grant_lease(self, ttl_seconds: int) -> Lease:
        """Make a lease that ends when it is not kept alive for its time to live."""
        ...

    async def keep_alive(self, lease: Lease) -> None:
        """Start the lease's time to live again. Raises `LeaseNotFound` when it has ended."""
        ...

    async def revoke(self, lease: Lease) -> None:
        """End a lease and remove its keys, all in one revision. Raises `LeaseNotFound` when it has ended."""
        ...

    async def compact(self, revision: Revision) -> None:
        """Give up the history before a revision. Earlier compactions reaching as far make it do nothing.

        Raises `FutureRevision` above the current revision.
        """
        ...

    async def close(self) -> None:
        """End this client's watches and calls. Its leases go on until they expire or are revoked."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exception: object) -> None: ...


def check_transaction(
    compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
) -> None:
    """Hold a transaction against the limits that every implementation keeps; before anything is sent.

    Raises `TransactionTooLarge`, and `ValueError` for a bad key or a key changed twice in one branch.
    """
    sides: tuple[tuple[str, Sequence[Compare | Operation]], ...] = (
        ("compares", compares),
        ("operations on success", success),
        ("operations on failure", failure),
    )
    for what, side in sides:
        if len(side) > OPERATIONS_MAX:
            raise TransactionTooLarge(what, len(side), OPERATIONS_MAX)
    for part in (*compares, *success, *failure):
        check_key(part.key)
    for branch in (success, failure):
        _check_changed_once(branch)
    nbytes = sum(_part_bytes(part) for _, side in sides for part in side)
    if nbytes > REQUEST_BYTES_MAX:
        raise TransactionTooLarge("bytes", nbytes, REQUEST_BYTES_MAX)


def check_key(key: str) -> None:
    """Raise `ValueError` unless the key is ASCII text and not empty."""
    if not key or not key.isascii():
        msg = f"key {key!a} is not allowed; keys are ASCII text and not empty"
        raise ValueError(msg)


def prefix_end(prefix: str) -> str | None:
    """Return the first key above every key with the prefix; None where there is no such key."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else None


def _check_changed_once(branch: Sequence[Operation]) -> None:
    changed = [operation.key for operation in branch if not isinstance(operation, Get)]
    if len(changed) != len(set(changed)):
        twice = next(key for key in changed if changed.count(key) > 1)
        msg = f"key {twice} is changed twice in one transaction"
        raise ValueError(msg)


def _part_bytes(part: Compare | Operation) -> int:
    value = part.value if isinstance(part, Put | Value) else b""
    return OPERATION_OVERHEAD_BYTES + len(part.key) + len(value)
