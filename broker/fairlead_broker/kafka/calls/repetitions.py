"""Names that one request repeats, each answered once, so that a small request cannot cause a large response.

Calls whose response to a name can be much larger than the name use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from fairlead_broker.kafka.calls.places import RefusedError
from fairlead_broker.kafka.protocol.errors import KafkaError

T = TypeVar("T")


def counted(items: Iterable[T], key: Callable[[T], Hashable]) -> list[tuple[T, int]]:
    """Return the first item of each key, in order, with the number of items of the key."""
    first: dict[Hashable, T] = {}
    counts: dict[Hashable, int] = {}
    for item in items:
        at = key(item)
        first.setdefault(at, item)
        counts[at] = counts.get(at, 0) + 1
    return [(item, counts[at]) for at, item in first.items()]


def merged(
    topics: Iterable[T], key: Callable[[T], Hashable], partitions: Callable[[T], Iterable[int]]
) -> list[tuple[T, list[int]]]:
    """Return the first topic of each key, in order, with the distinct partitions of all topics of the key."""
    found: dict[Hashable, tuple[T, dict[int, None]]] = {}
    for topic in topics:
        _, indexes = found.setdefault(key(topic), (topic, {}))
        indexes.update(dict.fromkeys(partitions(topic)))
    return [(topic, list(indexes)) for topic, indexes in found.values()]


def check_single(count: int, subject: str) -> None:
    """Raise `RefusedError` if the request names the subject more than once."""
    if count > 1:
        raise RefusedError(
            KafkaError.INVALID_REQUEST, f"the request names {subject} {count} times; allowed: once"
        )
