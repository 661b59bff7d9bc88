"""Time of a simulated world: one heap of future actions, and the only source of randomness.

Every action of a world is added to the heap with a delay. Actions that are due at the same time run in an order drawn
from the seed. The schedule does not depend on the effects of the actions.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any


class Schedule:
    """Future actions, ordered by time."""

    __slots__ = ("_count", "_heap", "happened", "now", "rng")

    def __init__(self, seed: int) -> None:
        """Start at time 0 without actions."""
        self.now = 0.0
        self.rng = Random(seed)
        self.happened = 0
        self._count = 0
        self._heap: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Schedule an action after a number of seconds."""
        self._count += 1
        heappush(self._heap, (self.now + delay, self.rng.random(), self._count, action, arguments))

    def run(self, until: float) -> None:
        """Run all actions that are due up to a time, and stop at that time."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, _, action, arguments = heappop(heap)
            self.happened += 1
            action(*arguments)
        self.now = until

    def between(self, least: float, most: float) -> float:
        """Draw a random duration in seconds."""
        return least + (most - least) * self.rng.random()

    def happens(self, probability: float) -> bool:
        """Draw whether an event with a probability happens."""
        return probability > 0 and self.rng.random() < probability
