"""ACLs compiled once for each security revision, and the patterns that apply to one caller (rules Z4, Z9).

A decision looks only at the ACLs whose principal pattern matches the caller, grouped by effect, kind and operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Final

from fairlead_api.access_needs import ALL_OPERATIONS, Kind, Operation
from fairlead_api.patterns import ANY, contains, matches

ID_LENGTH: Final = 16


class Effect(StrEnum):
    """Effect of an ACL. A deny has precedence over every allow."""

    ALLOW = "allow"
    DENY = "deny"


# The class has no slots, because `cached_property` needs `__dict__`. After a change to one ACL, all ACLs are compiled
# again, and the unchanged ACLs keep their cached values.
@dataclass(frozen=True, kw_only=True)
class Acl:
    """Rule that allows or denies operations to principals that match a pattern, on names that match another pattern."""

    effect: Effect
    principal: str
    operations: frozenset[str]
    """Operations that the ACL allows or denies, or the word `all`."""
    kind: Kind
    pattern: str

    @cached_property
    def acl_id(self) -> str:
        """Id derived from the content, so that equal ACLs are stored once (rule Z4)."""
        operations = ",".join(sorted(self.operations))
        text = f"{self.effect}|{self.principal}|{operations}|{self.kind}|{self.pattern}"
        return sha256(text.encode()).hexdigest()[:ID_LENGTH]

    @cached_property
    def decided(self) -> frozenset[Operation]:
        """Operations that this ACL decides (rule Z5).

        An allow of any operation also allows `describe`, and a deny of `describe` denies every operation.
        """
        named = (
            frozenset(Operation)
            if ALL_OPERATIONS in self.operations
            else frozenset(map(Operation, self.operations))
        )
        if self.effect is Effect.ALLOW:
            return named | {Operation.DESCRIBE}
        return frozenset(Operation) if Operation.DESCRIBE in named else named


class PatternSet:
    """Patterns of names, each with the id of its ACL."""

    __slots__ = ("_literals", "_prefixes")

    def __init__(self) -> None:
        self._literals: dict[str, str] = {}
        self._prefixes: list[tuple[str, str]] = []

    def add(self, pattern: str, acl_id: str) -> None:
        """Add a pattern."""
        if pattern.endswith(ANY):
            self._prefixes.append((pattern, acl_id))
        else:
            self._literals.setdefault(pattern, acl_id)

    def find(self, name: str) -> str | None:
        """Return the id of an ACL whose pattern matches a name, or None."""
        found = self._literals.get(name)
        if found is not None:
            return found
        for pattern, acl_id in self._prefixes:
            if matches(pattern, name):
                return acl_id
        return None

    def covers(self, prefix: str) -> bool:
        """Return whether one pattern matches every name that the pattern with this prefix matches."""
        return any(contains(pattern, prefix + ANY) for pattern, _ in self._prefixes)

    def touches(self, prefix: str) -> bool:
        """Return whether some name matches both a pattern of the set and the pattern with this prefix."""
        asked = prefix + ANY
        return any(matches(asked, name) for name in self._literals) or any(
            contains(pattern, asked) or contains(asked, pattern) for pattern, _ in self._prefixes
        )


Table = Mapping[tuple[Effect, Kind, Operation], PatternSet]


class AclIndex:
    """All ACLs of a security revision, by principal pattern."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._literals: dict[str, list[Acl]] = {}
        self._prefixes: dict[str, list[Acl]] = {}
        for acl in acls:
            table = self._prefixes if acl.principal.endswith(ANY) else self._literals
            table.setdefault(acl.principal, []).append(acl)

    def of(self, names: Iterable[str]) -> Table:
        """Return the patterns for a caller whose principal and groups are `names`, by effect, kind and operation."""
        table: dict[tuple[Effect, Kind, Operation], PatternSet] = {}
        for acl in self._applying(tuple(names)):
            acl_id = acl.acl_id
            for operation in acl.decided:
                key = acl.effect, acl.kind, operation
                patterns = table.get(key)
                if patterns is None:
                    patterns = table[key] = PatternSet()
                patterns.add(acl.pattern, acl_id)
        return table

    def _applying(self, names: tuple[str, ...]) -> Iterable[Acl]:
        for name in names:
            yield from self._literals.get(name, ())
        for pattern, acls in self._prefixes.items():
            if any(matches(pattern, name) for name in names):
                yield from acls
