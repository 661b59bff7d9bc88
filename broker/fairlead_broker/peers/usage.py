"""Messages about the use of limits: reports from brokers, and answers from the controller (rule Q4)."""

from __future__ import annotations

import msgspec


class UseReport(msgspec.Struct, frozen=True, array_like=True):
    """A broker's use of one limit."""

    name: str
    limit: float
    amount: float
    """Amount that was used since the broker's last report."""


class UsageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Report of the limits that are in use on a broker."""

    uses: list[UseReport]


class UseAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The other brokers' use of one limit."""

    name: str
    others: float
    """Amount that the other brokers use per second."""
    owes: bool
    """Whether the cluster has admitted more than the limit, and the excess has not been compensated yet."""


class UsageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a report: the use of the reported limits on the other brokers."""

    uses: list[UseAnswer]
