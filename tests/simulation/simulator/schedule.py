"""Time of a simulated world: one heap of what is still to happen, and the only source of chance.

Everything that happens is put here with a delay. Two things due at one moment happen in an order drawn from the
seed. Knows nothing of what it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any


class Schedule:
    """What is still to happen, in the order of time."""

    __slots__ = ("_count", "_heap", "happened", "now", "rng")

    def __init__(self, seed: int) -> None:
        """Begin at time 0 with nothing to do."""
        self.now = 0.0
        self.rng = Random(seed)
        self.happened = 0
        self._count = 0
        self._heap: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Let something happen so many seconds from now."""
        self._count += 1
        heappush(self._heap, (self.now + delay, self.rng.random(), self._count, action, arguments))

    def run(self, until: float) -> None:
        """Let everything happen that is due up to a moment, and stand at that moment."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, _, action, arguments = heappop(heap)
            self.happened += 1
            action(*arguments)
        self.now = until

    def between(self, least: float, most: float) -> float:
        """Draw a number of seconds."""
        return least + (most - least) * self.rng.random()

    def happens(self, probability: float) -> bool:
        """Draw whether something happens."""
        return probability > 0 and self.rng.random() < probability
