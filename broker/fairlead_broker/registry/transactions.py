"""Keys as read from the store, and the changes that planners request.

Planners make transactions from records that they have read, and `coordination` runs these transactions. All
values are pure and know no store. Compares have the same meaning as in etcd.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType, TypeAlias

from fairlead_api.identifiers import Revision

LeaseId = NewType("LeaseId", int)


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as of one revision."""

    key: str
    value: bytes
    create_revision: Revision
    """Revision of the put that created the key; a key that is deleted and created again gets a new create
    revision.
    """
    mod_revision: Revision
    """Revision of the last put."""
    lease_id: LeaseId | None = None
    """Lease with which the key ends."""


class Relation(Enum):
    """Relation of the value that a compare finds (left) to the value given to the compare (right)."""

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
    """Compare the value of a key, byte by byte. The compare is never true for a missing key, as in etcd."""

    key: str
    relation: Relation
    value: bytes


Compare: TypeAlias = CreateRevision | ModRevision | Value


def absent(key: str) -> Compare:
    """Return a compare that holds if the key does not exist."""
    return CreateRevision(key, Relation.EQUAL, 0)


def created_at(key: str, revision: int) -> Compare:
    """Return a compare that holds if the key was created at this revision, with any value."""
    return CreateRevision(key, Relation.EQUAL, revision)


def unchanged_since(key: str, revision: int) -> Compare:
    """Return a compare that holds if the last change of the key was at this revision."""
    return ModRevision(key, Relation.EQUAL, revision)


def has_value(key: str, value: bytes) -> Compare:
    """Return a compare that holds if the key exists with exactly this value."""
    return Value(key, Relation.EQUAL, value)


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key. A put without a lease detaches the key from its earlier lease."""

    key: str
    value: bytes
    lease_id: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. Removing a missing key changes no state and takes no revision."""

    key: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key inside the transaction; the item is in `TransactionResult.reads`."""

    key: str


Operation: TypeAlias = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class Transaction:
    """Compares and the operations that depend on them, as one value that planners make and drivers run."""

    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Definite result of a transaction."""

    succeeded: bool
    """Whether every compare held."""
    revision: Revision
    """Revision of the store after the transaction: the revision of the transaction's changes, if there are
    any.
    """
    reads: tuple[KeyValue | None, ...] = ()
    """Results of the `Get`s of the branch that ran, in their order."""
    deleted: int = 0
    """Number of keys that the branch removed."""
