"""Batches that are held because they overtook earlier batches of their producer on other HTTP/2 streams.

Only `partition_producers` uses this module. The wait has two bounds: a producer has at most five batches in
flight, so at most four batches wait for a missing batch, and no batch waits longer than one second.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from fairlead_api.identifiers import ProducerId
from fairlead_broker.producers.events import SequencedArrived

HELD_BATCHES_MAX: Final = 4
"""Maximum number of held batches from one producer: one less than its maximum number of batches in flight."""
HOLD_SECONDS: Final = 1.0
"""Number of seconds that a batch is held: longer than any reordering on one connection, but shorter than a producer's
timeout.
"""

R = TypeVar("R")


class HeldBatches(Generic[R]):
    """Held batches from all producers of a partition, in order of arrival."""

    __slots__ = ("_by_arrival", "_by_producer")

    def __init__(self) -> None:
        # Every batch is held for the same time, so the batch that arrived first expires first. The keys of this
        # dictionary are the identities of the requests.
        self._by_arrival: OrderedDict[int, SequencedArrived[R]] = OrderedDict()
        self._by_producer: dict[ProducerId, list[SequencedArrived[R]]] = {}

    def __len__(self) -> int:
        return len(self._by_arrival)

    def __iter__(self) -> Iterator[SequencedArrived[R]]:
        return iter(self._by_arrival.values())

    def of(self, producer_id: ProducerId) -> tuple[SequencedArrived[R], ...]:
        """Return the held batches from one producer, in order of arrival."""
        return tuple(self._by_producer.get(producer_id, ()))

    def add(self, batch: SequencedArrived[R]) -> bool:
        """Hold a batch, or return False if its producer already has the maximum number of held batches."""
        held = self._by_producer.setdefault(batch.producer_id, [])
        if len(held) == HELD_BATCHES_MAX:
            return False
        held.append(batch)
        self._by_arrival[id(batch.request)] = batch
        return True

    def remove(self, batch: SequencedArrived[R]) -> None:
        """Remove a batch from the held batches."""
        del self._by_arrival[id(batch.request)]
        held = self._by_producer[batch.producer_id]
        held[:] = [other for other in held if other.request is not batch.request]
        if not held:
            del self._by_producer[batch.producer_id]

    def find(self, request: R) -> SequencedArrived[R] | None:
        """Return the batch of a request, if it is held."""
        return self._by_arrival.get(id(request))

    def next_deadline(self) -> float | None:
        """Return the time at which the first held batch expires, in monotonic seconds."""
        first = next(iter(self._by_arrival.values()), None)
        return None if first is None else first.now + HOLD_SECONDS

    def due(self, now: float) -> list[SequencedArrived[R]]:
        """Return the held batches whose hold time has passed."""
        return [batch for batch in self._by_arrival.values() if batch.now + HOLD_SECONDS <= now]
