"""Decisions for one caller at one security revision, each with its reason (rule Z6).

A superuser is allowed everything. For any other caller, a matching deny decides or, without a matching deny, a matching
allow. Without a matching ACL, the operation is not allowed. Only names are compared, so a decision does not depend on
whether a resource exists (rule Z7).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.patterns import matches
from fairlead_broker.access.acl_index import AclIndex, Effect
from fairlead_broker.access.caller import Caller

DECISIONS_MAX: Final = 4096
"""Maximum number of cached decisions of one caller. The cache is cleared when it is full."""
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


class CallerRules:
    """Rules that apply to one caller."""

    __slots__ = ("_decisions", "_table", "is_superuser")

    def __init__(self, index: AclIndex, caller: Caller, superusers: Iterable[str]) -> None:
        self.is_superuser = not caller.is_anonymous and any(
            matches(pattern, name) for pattern in superusers for name in caller.names
        )
        self._table = index.of(caller.names)
        self._decisions: dict[tuple[Operation, Kind, str], Decision] = {}

    def decide(self, operation: Operation, kind: Kind, name: str) -> Decision:
        """Return whether the caller may execute an operation on a named resource."""
        key = (operation, kind, name)
        known = self._decisions.get(key)
        if known is None:
            known = self._decided(operation, kind, name)
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = known
        return known

    def allows_all(self, operation: Operation, kind: Kind, prefix: str) -> bool:
        """Return whether the caller may execute an operation on every name that begins with a prefix."""
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
