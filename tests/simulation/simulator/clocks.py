"""The wall clocks of a world's machines; the clocks differ and jump.

The error of a clock is a function of the world's time, drawn before the run from a separate generator, so that a world
with jumps has the same other faults as without them. In most worlds, all clocks are right. Leaders stamp append times
with these clocks; leases and timeouts use the time of the world.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

HOUR_SECONDS: Final = 3600.0
DAY_SECONDS: Final = 24 * HOUR_SECONDS
JUMPING_SHARE: Final = 0.35
"""Fraction of worlds with jumps."""
JUMP_SECONDS: Final = 1.5
"""Mean time between two jumps of a clock."""


class Clocks:
    """The errors of the wall clocks of one world."""

    def __init__(
        self, seed: int, machines: Iterable[int], start: float, end: float, far: Sequence[float]
    ) -> None:
        """Draw jumps between two times of the world; before and after, all clocks are right.

        `far`: errors in seconds of the large jumps. Small jumps are shorter than an hour.
        """
        rng = Random(f"clocks of {seed}")
        self.is_jumping = rng.random() < JUMPING_SHARE
        """Whether any clock jumps in this world."""
        self._jumps = {each: _jumps(rng, start, end, far) if self.is_jumping else [] for each in machines}

    def error(self, machine: int, now: float) -> float:
        """Return the number of seconds by which the clock of a machine is ahead."""
        jumps = self._jumps[machine]
        at = bisect_right(jumps, now, key=lambda jump: jump[0])
        return jumps[at - 1][1] if at else 0.0


def _jumps(rng: Random, start: float, end: float, far: Sequence[float]) -> list[tuple[float, float]]:
    """Return the times of jumps, each with the error that applies from that time. The last jump corrects the clock."""
    jumps, at = [(start, rng.uniform(-2.0, 2.0))], start
    while (at := at + rng.expovariate(1 / JUMP_SECONDS)) < end:
        near = rng.choice((0.0, rng.uniform(-HOUR_SECONDS, HOUR_SECONDS)))
        jumps.append((at, near if rng.random() < 0.5 else rng.choice(far)))
    return [*jumps, (end, 0.0)]
