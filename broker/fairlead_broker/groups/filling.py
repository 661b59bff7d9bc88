"""How free places take free partitions, and which partitions a member with too many gives up.

The common ground of the assignors. Balance comes first and is settled by quotas before anything here runs; then
nothing moves without need; racks decide only between partitions that have to move anyway, so that a member never
loses its place to a nearer one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import TypeAlias

from fairlead_api.identifiers import TopicId

Place: TypeAlias = tuple[TopicId, int]
"""A partition of a topic."""
Racks: TypeAlias = Mapping[Place, frozenset[str]]
"""Where partitions have replicas; those of unknown racks are left out."""


def quotas(counts: Mapping[str, int], total: int) -> dict[str, int]:
    """Share `total` equally: who holds most gets what is left over, for nobody has to give up more than it must.

    The order of `counts` decides between equals.
    """
    low, extra = divmod(total, len(counts))
    fullest_first = sorted(counts, key=counts.__getitem__, reverse=True)
    return {member: low + (place < extra) for place, member in enumerate(fullest_first)}


def surrender(held: list[Place], surplus: int, rack: str | None, racks: Racks) -> list[Place]:
    """Take the surplus out of what a member holds, and return it.

    Far ones first, then from the topic of which it holds most, the highest first: every topic stays spread.
    """
    far = [place for place in held if rack is not None and place in racks and rack not in racks[place]]
    given_up = far[:surplus]
    gone = set(given_up)
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in held:
        if (topic_id, partition) not in gone:
            by_topic.setdefault(topic_id, []).append(partition)
    fullest = [(-len(partitions), topic_id) for topic_id, partitions in by_topic.items()]
    heapify(fullest)
    while len(given_up) < surplus:
        negative_count, topic_id = fullest[0]
        given_up.append((topic_id, by_topic[topic_id].pop()))
        heapreplace(fullest, (negative_count + 1, topic_id))
    held[:] = [(topic_id, partition) for topic_id, rest in by_topic.items() for partition in rest]
    return given_up


def near_places(
    free: Sequence[Place], open_places: dict[str, int], rack_of: Mapping[str, str], racks: Racks
) -> tuple[list[tuple[str, Place]], list[Place]]:
    """Give partitions to members in a rack of theirs, as far as there are; `open_places` counts down.

    Returns who got what, and what is left. The rack with the most open places goes first.
    """
    waiting: dict[str, deque[str]] = {}
    for member, rack in rack_of.items():
        if open_places.get(member):
            waiting.setdefault(rack, deque()).append(member)
    room = {rack: sum(open_places[member] for member in members) for rack, members in waiting.items()}
    taken: list[tuple[str, Place]] = []
    left: list[Place] = []
    for place in free:
        nearest = _roomiest(racks.get(place, ()), room)
        if nearest is None:
            left.append(place)
        else:
            room[nearest] -= 1
            taken.append((_next_of(waiting[nearest], open_places), place))
    return taken, left


def deal(free: Iterable[Place], open_places: dict[str, int]) -> list[tuple[str, Place]]:
    """Deal partitions round the members with open places: neighbours of one topic go to different members."""
    waiting = deque(member for member, count in open_places.items() if count)
    return [(_next_of(waiting, open_places), place) for place in free]


def _roomiest(racks: Collection[str], room: Mapping[str, int]) -> str | None:
    best = max(sorted(racks), key=lambda rack: room.get(rack, 0), default=None)
    return best if best is not None and room.get(best, 0) > 0 else None


def _next_of(waiting: deque[str], open_places: dict[str, int]) -> str:
    member = waiting.popleft()
    open_places[member] -= 1
    if open_places[member]:
        waiting.append(member)
    return member
