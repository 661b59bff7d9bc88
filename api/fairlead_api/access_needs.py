"""Operations and resource kinds in access rules, and the permissions that calls need (rules Z5 and Z15).

Each route of the route table has one `Access`. The broker checks permissions on names in the path and on `*` before it
reads the query; the endpoint checks permissions on names in the body or in the answer. This module must not depend on
any particular route.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Operation(StrEnum):
    """Operation of a call on a resource, with the names from Kafka's access rules."""

    DESCRIBE = "describe"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    READ = "read"
    WRITE = "write"


class Kind(StrEnum):
    """Kind of resource. The only name of the kinds CLUSTER and SECURITY is `*`.

    A caller with rights on SECURITY can become any principal. Rights on CLUSTER are separate, so that the operators of
    brokers need no rights on SECURITY (rule Z16).
    """

    TOPIC = "topic"
    GROUP = "group"
    PRODUCER = "producer"
    CLUSTER = "cluster"
    SECURITY = "security"


ALL_OPERATIONS: Final = "all"
"""Word for all operations in an ACL."""
SINGLE_KINDS: Final = frozenset({Kind.CLUSTER, Kind.SECURITY})
"""Kinds of resources whose only name is `*`."""
SINGLE_NAME: Final = "*"


class NameSource(StrEnum):
    """How to find the name of the resource on which a permission is needed."""

    PATH = "path"
    """The name is the value of the path parameter that is named after the kind."""
    SINGLE = "single"
    """The call needs permission on the name `*`, the only resource of its kind."""
    BODY = "body"
    """The permission is needed on each name in the body or query. The endpoint checks this permission, and reports a
    refused name in an item of the answer or refuses the call.
    """
    ANSWER = "answer"
    """The permission is needed on the name of each entry of the answer. The endpoint omits entries that the caller is
    not allowed to describe.
    """


@dataclass(frozen=True, slots=True)
class Need:
    """Operation on a resource for which the caller needs permission."""

    operation: Operation
    kind: Kind
    source: NameSource = NameSource.PATH

    def __str__(self) -> str:
        """Return the permission in the notation of access rules, such as `write topic`."""
        of = {NameSource.BODY: " (each in the request)", NameSource.ANSWER: " (each in the answer)"}
        return f"{self.operation} {self.kind}{of.get(self.source, '')}"


class Audience(StrEnum):
    """Callers that may make a call, before the endpoint checks any permissions of its own."""

    PUBLIC = "public"
    """Every caller, without any access decision."""
    SELF = "self"
    """Every authenticated caller, and `anonymous` if any ACL allows an operation. The endpoint also checks the
    permissions that the call needs.
    """
    NEEDS = "needs"
    """Callers that are allowed every operation that the call needs on a name in the path or on `*`."""
    BROKER = "broker"
    """Other brokers of the cluster."""


@dataclass(frozen=True, slots=True)
class Access:
    """Callers that may make a call, and the operations for which these callers need permission."""

    audience: Audience
    needs: tuple[Need, ...] = ()

    @property
    def gate(self) -> tuple[Need, ...]:
        """Permissions that the broker checks before the endpoint runs."""
        return tuple(need for need in self.needs if need.source in (NameSource.PATH, NameSource.SINGLE))

    def __str__(self) -> str:
        """Return the access as text for the reference page, such as `self, read topic`."""
        words = [] if self.audience is Audience.NEEDS else [self.audience.value]
        return ", ".join([*words, *map(str, self.needs)])


PUBLIC: Final = Access(Audience.PUBLIC)
SELF: Final = Access(Audience.SELF)
BROKER: Final = Access(Audience.BROKER)


def needs(*each: Need) -> Access:
    """Return the access of a call whose caller must have all of the given permissions."""
    return Access(Audience.NEEDS, each)


def self_with(*each: Need) -> Access:
    """Return the access of a call that every authenticated caller may make; the endpoint checks `each`."""
    return Access(Audience.SELF, each)


def on(operation: Operation, kind: Kind) -> Need:
    """Return the permission needed on the name in the path, or on `*` for kinds with a single name."""
    return Need(operation, kind, NameSource.SINGLE if kind in SINGLE_KINDS else NameSource.PATH)


def each_in_body(operation: Operation, kind: Kind) -> Need:
    """Return the permission needed on each name in the request."""
    return Need(operation, kind, NameSource.BODY)


def each_in_answer(operation: Operation, kind: Kind) -> Need:
    """Return the permission needed on each entry of the answer."""
    return Need(operation, kind, NameSource.ANSWER)
