"""Batches that came before others that were sent earlier: HTTP/2 streams overtake each other.

Used by `partition_producers` alone. Bounded twice: a producer has at most five batches in flight, so four may wait
for one, and none waits longer than a second.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from fairlead_api.identifiers import ProducerId
from fairlead_broker.producers.events import SequencedArrived

HELD_BATCHES_MAX: Final = 4
"""Held batches of one producer: one less than it may have in flight."""
HOLD_SECONDS: Final = 1.0
"""Longer than any reordering on one connection, shorter than the patience of a sender."""

R = TypeVar("R")


class HeldBatches(Generic[R]):
    """Held batches of all producers of a partition, in the order of their arrival."""

    __slots__ = ("_by_arrival", "_by_producer")

    def __init__(self) -> None:
        # Every batch waits equally long, so the first to come is the first to go. Keys are identities.
        self._by_arrival: OrderedDict[int, SequencedArrived[R]] = OrderedDict()
        self._by_producer: dict[ProducerId, list[SequencedArrived[R]]] = {}

    def __len__(self) -> int:
        return len(self._by_arrival)

    def __iter__(self) -> Iterator[SequencedArrived[R]]:
        return iter(self._by_arrival.values())

    def of(self, producer_id: ProducerId) -> tuple[SequencedArrived[R], ...]:
        """Return the batches of one producer, in the order of their arrival."""
        return tuple(self._by_producer.get(producer_id, ()))

    def add(self, batch: SequencedArrived[R]) -> bool:
        """Hold a batch; False if its producer has as many as it may."""
        held = self._by_producer.setdefault(batch.producer_id, [])
        if len(held) == HELD_BATCHES_MAX:
            return False
        held.append(batch)
        self._by_arrival[id(batch.request)] = batch
        return True

    def remove(self, batch: SequencedArrived[R]) -> None:
        """Hold a batch no longer."""
        del self._by_arrival[id(batch.request)]
        held = self._by_producer[batch.producer_id]
        held[:] = [other for other in held if other.request is not batch.request]
        if not held:
            del self._by_producer[batch.producer_id]

    def find(self, request: R) -> SequencedArrived[R] | None:
        """Return the batch of a request, if it is held."""
        return self._by_arrival.get(id(request))

    def next_deadline(self) -> float | None:
        """Return when the first of them has waited long enough, monotonic seconds."""
        first = next(iter(self._by_arrival.values()), None)
        return None if first is None else first.now + HOLD_SECONDS

    def due(self, now: float) -> list[SequencedArrived[R]]:
        """Return the held batches whose time is over."""
        return [batch for batch in self._by_arrival.values() if batch.now + HOLD_SECONDS <= now]
