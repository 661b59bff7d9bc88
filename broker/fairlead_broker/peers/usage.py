"""Messages about the use of limits: what a broker let in, and what it hears from the controller (rule Q4)."""

from __future__ import annotations

import msgspec


class UseReport(msgspec.Struct, frozen=True, array_like=True):
    """Use of one limit on a broker."""

    name: str
    limit: float
    amount: float
    """Amount since the broker's last report."""


class UsageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Report of the limits that are in use on a broker."""

    uses: list[UseReport]


class UseHeard(msgspec.Struct, frozen=True, array_like=True):
    """Use of one limit on the other brokers."""

    name: str
    others: float
    """Amount in a second."""
    owes: bool
    """Whether the cluster has let in more than the limit, and has not made up for it yet."""


class UsageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker hears about the limits of its report."""

    uses: list[UseHeard]
