"""Keys as read from the store, and the compares, reads and writes that planners request.

Planners create writes from records that they have read, and `coordination` carries the writes out. All
values are pure and independent of the store. Compares have the same meaning as in etcd.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType, TypeAlias

from fairlead_api.identifiers import Revision

LeaseId = NewType("LeaseId", int)


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key with its value at one revision."""

    key: str
    value: bytes
    create_revision: Revision
    """Revision of the put that created the key. A key that is deleted and created again gets a new create revision."""
    mod_revision: Revision
    """Revision of the last put of the key."""
    lease_id: LeaseId | None = None
    """Lease whose end removes the key, or None for a key without a lease."""


class Relation(Enum):
    """Relation between the stored value (left) and the value given to a compare (right)."""

    EQUAL = "="
    NOT_EQUAL = "!="
    GREATER = ">"
    LESS = "<"


@dataclass(frozen=True, slots=True)
class CreateRevision:
    """Compare the create revision of a key, which is 0 for a missing key."""

    key: str
    relation: Relation
    revision: int


@dataclass(frozen=True, slots=True)
class ModRevision:
    """Compare the mod revision of a key, which is 0 for a missing key."""

    key: str
    relation: Relation
    revision: int


@dataclass(frozen=True, slots=True)
class Value:
    """Compare the value of a key byte by byte. As in etcd, the compare always fails for a missing key."""

    key: str
    relation: Relation
    value: bytes


Compare: TypeAlias = CreateRevision | ModRevision | Value


def absent(key: str) -> Compare:
    """Return a compare that succeeds if the key does not exist."""
    return CreateRevision(key, Relation.EQUAL, 0)


def created_at(key: str, revision: int) -> Compare:
    """Return a compare that succeeds if the key was created at this revision and still exists, with any value."""
    return CreateRevision(key, Relation.EQUAL, revision)


def unchanged_since(key: str, revision: int) -> Compare:
    """Return a compare that succeeds if the key was last changed at this revision."""
    return ModRevision(key, Relation.EQUAL, revision)


def has_value(key: str, value: bytes) -> Compare:
    """Return a compare that succeeds if the key exists with exactly this value."""
    return Value(key, Relation.EQUAL, value)


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key. A put without a lease detaches the key from its earlier lease."""

    key: str
    value: bytes
    lease_id: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. Removing a missing key changes nothing and does not use a revision."""

    key: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key inside the transaction. The item is returned in `TransactionResult.reads`."""

    key: str


Operation: TypeAlias = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class Transaction:
    """Compares, and the operations that depend on them. Planners create transactions, and `coordination` runs them."""

    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Definite result of a transaction."""

    succeeded: bool
    """Whether every compare succeeded."""
    revision: Revision
    """Revision of the store after the transaction. The changes of the transaction, if there are any, have this
    revision.
    """
    reads: tuple[KeyValue | None, ...] = ()
    """Results of the `Get`s in the branch that ran, in order."""
    deleted: int = 0
    """Number of keys that the transaction removed."""
