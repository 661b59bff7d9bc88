"""Share of a broker in a limit of the cluster (rule Q4).

A broker may use the part of a limit that other brokers leave unused, so that a single busy leader gets the whole limit.
While the cluster is in debt because brokers have admitted too much, each broker gets an equal part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEARD_SECONDS_MAX: Final = 5.0
"""Time without an answer from the controller after which a broker uses at most an equal part."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Answer of the controller to a broker about one limit."""

    others: float
    """Amount in a second that the other brokers admit."""
    owes: bool
    """Whether the cluster has admitted more than the limit, and is still in debt."""
    at: float


def share_of(limit: float, brokers: int, heard: Heard | None, now: float) -> float:
    """Return the amount in a second that a broker may admit."""
    equal = limit / max(1, brokers)
    if heard is None or heard.owes or now - heard.at > HEARD_SECONDS_MAX:
        return equal
    return max(equal, limit - heard.others)
