"""Decisions for one caller at one security revision, each with its reason (rule Z6).

A superuser is allowed everything. For any other caller, a matching deny decides or, without a matching deny, a matching
allow. Without a matching ACL, the operation is not allowed. Only names are compared, so a decision does not depend on
whether a resource exists (rule Z7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.identifiers import NAME_LENGTH_MAX
from fairlead_api.patterns import matches
from fairlead_broker.access.acl_index import AclIndex, Effect
from fairlead_broker.access.caller import Caller

DECISIONS_MAX: Final = 4096
"""Maximum number of cached decisions of one caller. The caller's table is cleared when it is full."""
DECISIONS_IN_ALL_MAX: Final = 200_000
"""Maximum number of cached decisions of all callers. At the limit, the table that was added first is cleared."""
SUPERUSER: Final = "superuser"
NO_ACL: Final = "no ACL allows it"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an operation is allowed, and the reason."""

    allowed: bool
    because: str
    """Reason of the decision: `superuser`, the id of the deciding ACL, or `no ACL allows it`."""


_SUPERUSER: Final = Decision(True, SUPERUSER)
_NO_ACL: Final = Decision(False, NO_ACL)


DecisionTable: TypeAlias = dict[tuple[Operation, Kind, str], Decision]
"""Cached decisions of one caller."""


class CachedDecisions:
    """Tables of the cached decisions of all callers, which are limited together (rule Z9)."""

    __slots__ = ("_tables", "count")

    def __init__(self) -> None:
        self._tables: deque[DecisionTable] = deque()
        """Tables that contain a decision, in the order in which they were added."""
        self.count = 0
        """Number of decisions in all tables."""

    def add(self, table: DecisionTable, key: tuple[Operation, Kind, str], decision: Decision) -> None:
        """Add a decision to a table. At a limit, this table or the oldest table is cleared first."""
        if self.count >= DECISIONS_IN_ALL_MAX:
            # One table is enough, because every table in the queue contains a decision.
            self._empty(self._tables.popleft())
        if len(table) >= DECISIONS_MAX:
            self._empty(table)
        elif not table:
            self._tables.append(table)
        table[key] = decision
        self.count += 1

    def clear(self) -> None:
        """Clear all tables, including the tables of callers that are no longer remembered."""
        for table in self._tables:
            table.clear()
        self._tables.clear()
        self.count = 0

    def _empty(self, table: DecisionTable) -> None:
        self.count -= len(table)
        table.clear()


class CallerRules:
    """Rules that apply to one caller."""

    __slots__ = ("_cached", "_decisions", "_table", "is_superuser")

    def __init__(
        self,
        index: AclIndex,
        caller: Caller,
        superusers: Iterable[str],
        cached: CachedDecisions | None = None,
    ) -> None:
        """`cached`: cache that all callers share; None creates a cache for this caller alone."""
        self.is_superuser = not caller.is_anonymous and any(
            matches(pattern, name) for pattern in superusers for name in caller.names
        )
        self._table = index.of(caller.names)
        self._decisions: DecisionTable = {}
        self._cached = cached or CachedDecisions()

    def decide(self, operation: Operation, kind: Kind, name: str) -> Decision:
        """Return whether the caller may execute an operation on a named resource."""
        key = (operation, kind, name)
        known = self._decisions.get(key)
        if known is None:
            known = self._decided(operation, kind, name)
            # The Kafka listener decides about names before it checks their length.
            if len(name) <= NAME_LENGTH_MAX:
                self._cached.add(self._decisions, key, known)
        return known

    def allows_all(self, operation: Operation, kind: Kind, prefix: str) -> bool:
        """Return whether the caller may execute an operation on every name that begins with a prefix.

        Internal names are included only if the prefix begins with `__` (rule Z6).
        """
        if self.is_superuser:
            return True
        allowed = self._table.get((Effect.ALLOW, kind, operation))
        denied = self._table.get((Effect.DENY, kind, operation))
        return (
            allowed is not None
            and allowed.covers(prefix)
            and not (denied is not None and denied.touches(prefix))
        )

    @property
    def allows_anything(self) -> bool:
        """Whether at least one ACL allows the caller an operation.

        An ACL for `anonymous` lets every caller make calls.
        """
        return self.is_superuser or any(effect is Effect.ALLOW for effect, _, _ in self._table)

    @property
    def can_set_back(self) -> bool:
        """Whether the caller could change the security mode (rule Z2)."""
        return all(
            self.decide(Operation.ALTER, kind, SINGLE_NAME).allowed for kind in (Kind.CLUSTER, Kind.SECURITY)
        )

    def _decided(self, operation: Operation, kind: Kind, name: str) -> Decision:
        if self.is_superuser:
            return _SUPERUSER
        for effect in (Effect.DENY, Effect.ALLOW):
            patterns = self._table.get((effect, kind, operation))
            acl_id = None if patterns is None else patterns.find(name)
            if acl_id is not None:
                return Decision(effect is Effect.ALLOW, acl_id)
        return _NO_ACL
