"""Partitions that something has touched, those without a leader first.

For the controllership. When a broker is lost, most of its partitions only lose a member of their isr, and nobody waits
for that as clients wait for a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairlead_broker.registry.keys import PartitionKey


class TouchedPartitions:
    """What has to be looked at again; each partition once."""

    def __init__(self, is_urgent: Callable[[PartitionKey], bool]) -> None:
        """`is_urgent` is asked when a partition is added."""
        self._is_urgent = is_urgent
        self._urgent: set[PartitionKey] = set()
        self._others: set[PartitionKey] = set()

    def __bool__(self) -> bool:
        return bool(self._urgent or self._others)

    def add(self, keys: Iterable[PartitionKey]) -> None:
        """Add partitions; how urgent one is may have changed since it was added before."""
        for key in keys:
            urgent = self._is_urgent(key)
            (self._urgent if urgent else self._others).add(key)
            (self._others if urgent else self._urgent).discard(key)

    def take(self, count: int) -> list[PartitionKey]:
        """Take out at most so many, the urgent ones first."""
        taken: list[PartitionKey] = []
        for keys in (self._urgent, self._others):
            while keys and len(taken) < count:
                taken.append(keys.pop())
        return taken

    def clear(self) -> None:
        """Forget all."""
        self._urgent.clear()
        self._others.clear()
