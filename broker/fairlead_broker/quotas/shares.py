"""A broker's share of a cluster-wide limit (rule Q4).

A broker may use the part of a limit that other brokers leave unused, so that a single busy leader gets the whole limit.
While the cluster is in debt because brokers have admitted too much, each broker gets an equal share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ANSWER_SECONDS_MAX: Final = 5.0
"""Seconds without an answer from the controller after which a broker uses at most an equal share of each limit."""


@dataclass(frozen=True, slots=True)
class UseByOthers:
    """Answer of the controller to a broker about one limit."""

    others: float
    """Amount that the other brokers admit per second."""
    owes: bool
    """Whether the cluster has admitted more than the limit, and the excess has not been compensated yet."""
    at: float


def share_of(limit: float, brokers: int, by_others: UseByOthers | None, now: float) -> float:
    """Return the amount that a broker may admit per second."""
    equal = limit / max(1, brokers)
    if by_others is None or by_others.owes or now - by_others.at > ANSWER_SECONDS_MAX:
        return equal
    return max(equal, limit - by_others.others)
