"""Security modes of a cluster (rule Z1)."""

from __future__ import annotations

from enum import StrEnum


class SecurityMode(StrEnum):
    """How decisions act, from the least to the most strict."""

    OPEN = "open"
    """Nothing is decided."""
    OBSERVE = "observe"
    """Everything is decided and counted, and nothing is refused."""
    ENFORCE = "enforce"
    """Everything is decided, and what is not allowed is refused."""

    def stricter(self, other: SecurityMode) -> SecurityMode:
        """Return the stricter of two modes."""
        order = tuple(SecurityMode)
        return max(self, other, key=order.index)
