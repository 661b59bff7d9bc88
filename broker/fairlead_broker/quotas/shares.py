"""Share of a broker in a limit of the cluster (rule Q4).

A broker may let in what the other brokers leave over, so that a single busy leader gets the whole limit. While the
cluster owes because brokers have let in too much, each broker gets an equal part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEARD_SECONDS_MAX: Final = 5.0
"""Time after which a broker that hears nothing from the controller keeps to an equal part."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the controller told a broker about one limit."""

    others: float
    """Amount in a second that the other brokers let in."""
    owes: bool
    """Whether the cluster has let in more than the limit, and has not made up for it yet."""
    at: float


def share_of(limit: float, brokers: int, heard: Heard | None, now: float) -> float:
    """Return the amount in a second that a broker may let in."""
    equal = limit / max(1, brokers)
    if heard is None or heard.owes or now - heard.at > HEARD_SECONDS_MAX:
        return equal
    return max(equal, limit - heard.others)
