"""Security modes of a cluster (rule Z1)."""

from __future__ import annotations

from enum import StrEnum


class SecurityMode(StrEnum):
    """Security mode of a cluster, from the least to the most strict."""

    OPEN = "open"
    """Every call is allowed without a check of the ACLs."""
    OBSERVE = "observe"
    """The ACLs are checked, and operations that no ACL allows are counted but not refused."""
    ENFORCE = "enforce"
    """The ACLs are checked, and operations that no ACL allows are refused."""

    def stricter(self, other: SecurityMode) -> SecurityMode:
        """Return the stricter of two modes."""
        order = tuple(SecurityMode)
        return max(self, other, key=order.index)
