"""Keys as they were read and the changes that planners ask for.

For planners, which make transactions from records that they have read, and for `coordination`, which runs them. Pure
values; knows no store. Compares have the meaning that etcd gives them.
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
    """Revision of the put that created the key; a key that was deleted and created again has a new one."""
    mod_revision: Revision
    """Revision of the last put."""
    lease_id: LeaseId | None = None
    """The lease with which the key ends."""


class Relation(Enum):
    """How a compare relates the value that it finds (left) to the value that it was given (right)."""

    EQUAL = "="
    NOT_EQUAL = "!="
    GREATER = ">"
    LESS = "<"


@dataclass(frozen=True, slots=True)
class CreateRevision:
    """Compare the create revision of a key; 0 for a key that does not exist."""

    key: str
    relation: Relation
    revision: int


@dataclass(frozen=True, slots=True)
class ModRevision:
    """Compare the mod revision of a key; 0 for a key that does not exist."""

    key: str
    relation: Relation
    revision: int


@dataclass(frozen=True, slots=True)
class Value:
    """Compare the value of a key, byte by byte. Never true for a key that does not exist, as in etcd."""

    key: str
    relation: Relation
    value: bytes


Compare: TypeAlias = CreateRevision | ModRevision | Value


def absent(key: str) -> Compare:
    """Hold if the key does not exist."""
    return CreateRevision(key, Relation.EQUAL, 0)


def created_at(key: str, revision: int) -> Compare:
    """Hold if the key was created at this revision, with any value."""
    return CreateRevision(key, Relation.EQUAL, revision)


def unchanged_since(key: str, revision: int) -> Compare:
    """Hold if the last change of the key was at this revision."""
    return ModRevision(key, Relation.EQUAL, revision)


def has_value(key: str, value: bytes) -> Compare:
    """Hold if the key exists with exactly this value."""
    return Value(key, Relation.EQUAL, value)


@dataclass(frozen=True, slots=True)
class Put:
    """Set a key. Without a lease, a key that had one is detached from it."""

    key: str
    value: bytes
    lease_id: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key. Removing a key that does not exist changes nothing and takes no revision."""

    key: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key inside the transaction; answered in `TransactionResult.reads`."""

    key: str


Operation: TypeAlias = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class Transaction:
    """Compares and the operations that follow from them, as one value that planners make and drivers run."""

    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Definite result of a transaction."""

    succeeded: bool
    """Whether every compare held."""
    revision: Revision
    """Revision of the store after the transaction; the revision of its changes, if it made any."""
    reads: tuple[KeyValue | None, ...] = ()
    """Answers to the `Get`s of the branch that ran, in their order."""
    deleted: int = 0
    """Number of keys that the branch removed."""
