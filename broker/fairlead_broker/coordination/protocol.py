"""Interface and guarantees of every coordination store: the subset of etcd's model that Fairlead uses.

The implementations (`embedded`, `etcd`) must pass one conformance suite, and all readers and writers of keys
depend on this module, which performs no I/O. The model has one sequence of revisions, and all changes of a
transaction have the same new revision. The history can be read and watched until it is compacted. Leases detect
the end of a process, but only a compare makes a write safe.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeAlias

from fairlead_api.identifiers import Revision
from fairlead_broker.registry.store_writes import (
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
"""Maximum number of compares in one transaction, of operations on success, and of operations on failure (etcd's
`--max-txn-ops`).
"""
REQUEST_BYTES_MAX: Final = 1_572_864
"""Maximum size of one transaction in bytes (etcd's `--max-request-bytes`: 1.5 MiB)."""
OPERATION_OVERHEAD_BYTES: Final = 64
"""Number of bytes counted for each compare and operation in addition to its key and value. The number exceeds the
overhead of protobuf, so that both implementations accept the same transactions.
"""
PAGE_KEYS_MAX: Final = 1000
"""Number of keys in one page of a list, unless the caller requests fewer keys."""


class CoordinationError(Exception):
    """Base class of the errors of a coordination store."""


class CoordinationUnavailable(CoordinationError):
    """The store could not be reached or has failed. A transaction with this error was definitely not applied."""


class CoordinationClosed(CoordinationUnavailable):
    """This client was closed."""


class CoordinationRefused(CoordinationUnavailable):
    """The store refuses this client, and a retry does not help."""


class UnknownOutcome(CoordinationError):
    """The transaction may have been applied, may be applied later, or may never be (protocol section 3, rule 4).

    An unchanged key does not prove that the transaction was not applied. Only a definite answer or a key with a
    higher mod revision proves the outcome.
    """


class Compacted(CoordinationError):
    """The requested revision is older than the kept history.

    The caller has to list the keys again and then watch from the revision of the list.
    """

    def __init__(self, revision: Revision) -> None:
        super().__init__(f"history before revision {revision} is compacted")
        self.revision = revision
        """The oldest readable revision."""


class FutureRevision(CoordinationError):
    """The requested revision is above the store's revision."""

    def __init__(self, asked: int, current: Revision) -> None:
        super().__init__(f"revision {asked} is ahead of the current revision {current}")
        self.current = current


class TransactionTooLarge(CoordinationError):
    """The transaction exceeds a limit of section 3, rule 6, and was not applied. The caller can split it and retry."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"a transaction with {size} {what} exceeds the limit of {limit}")
        self.what = what
        self.size = size
        self.limit = limit


class LeaseNotFound(CoordinationError):
    """The lease has expired, was revoked, or never existed.

    The lease's keys have been removed or are about to be removed.
    """

    def __init__(self, lease_id: LeaseId) -> None:
        super().__init__(f"lease {lease_id} no longer exists")
        self.lease_id = lease_id


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list of keys. All pages of one list are read at one revision."""

    items: tuple[KeyValue, ...]
    """Keys and values in the byte order of the keys."""
    revision: Revision
    """Revision of the list. The caller passes this revision with `after` to get the next page."""
    next: str | None
    """Value of `after` for the next page, or None on the last page."""


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
    """All events of one revision under the watched prefix. The batch is empty in the answer to a progress request.

    When a batch is delivered, all earlier events under the prefix have already been delivered.
    """

    revision: Revision
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease, whose keys are removed when it ends."""

    lease_id: LeaseId
    ttl_seconds: int


class Watch(Protocol):
    """Events of a prefix in revision order, each event exactly once.

    Iteration ends after `cancel`. Iteration raises `Compacted` if a compaction removed events,
    `CoordinationClosed` if the client was closed, and `CoordinationUnavailable` if the watch failed. No event is
    lost if a task is cancelled while it waits for the next batch.
    """

    def __aiter__(self) -> AsyncIterator[WatchBatch]: ...

    async def __anext__(self) -> WatchBatch: ...

    async def request_progress(self) -> None:
        """Request a batch without events, which is delivered after all events up to the store's current revision."""
        ...

    async def cancel(self) -> None:
        """End the watch and release its resources."""
        ...


class Coordination(Protocol):
    """One client of a store. Every method may raise `CoordinationUnavailable`.

    Keys are non-empty ASCII text, ordered by their bytes.
    """

    async def list(
        self,
        prefix: str,
        *,
        revision: Revision | None = None,
        after: str | None = None,
        limit: int = PAGE_KEYS_MAX,
    ) -> Page:
        """Read the keys under a prefix at a revision, or at the current revision.

        Raises `Compacted` for a revision below the kept history, and `FutureRevision` for a revision above the
        current revision.
        """
        ...

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        """Watch the keys under a prefix, starting at a revision, which is included and may be in the future."""
        ...

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Atomically apply the operations `success` if every compare succeeds, and otherwise the operations `failure`.

        Raises `TransactionTooLarge`, `LeaseNotFound` (a put names an ended lease, and nothing was applied),
        `UnknownOutcome`, and `ValueError` for a key that is changed twice in one branch.
        """
        ...

    async def grant_lease(self, ttl_seconds: int) -> Lease:
        """Grant a lease, which expires unless it is kept alive within its time to live."""
        ...

    async def keep_alive(self, lease: Lease) -> None:
        """Restart the lease's time to live. Raises `LeaseNotFound` if the lease has ended."""
        ...

    async def revoke(self, lease: Lease) -> None:
        """End a lease and remove its keys in one revision. Raises `LeaseNotFound` if the lease has ended."""
        ...

    async def compact(self, revision: Revision) -> None:
        """Drop the history before a revision, unless the history is already compacted up to that revision.

        Raises `FutureRevision` for a revision above the current revision.
        """
        ...

    async def close(self) -> None:
        """End this client's watches and calls. The client's leases continue until they expire or are revoked."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exception: object) -> None: ...


def check_transaction(
    compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
) -> None:
    """Check the limits that all implementations enforce, before a transaction is sent.

    Raises `TransactionTooLarge`, and `ValueError` for an invalid key or a key that is changed twice in one branch.
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
    """Return the first key above every key with the prefix, or None if there is no such key."""
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
