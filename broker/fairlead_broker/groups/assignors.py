"""Who is to have which partition: the target of a group.

`uniform` (the default) shares all partitions of the group equally; `range` shares each topic by itself and gives
partitions of the same number to the same member, for joins. Both are sticky: a partition moves only if balance
asks for it. Pure functions of subscriptions, topics and the target before; called once for a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups.filling import Place, deal, near_places, quotas, surrender
from fairlead_broker.groups.metadata import TopicShape
from fairlead_broker.groups.uneven import assign_uneven

UNIFORM: Final = "uniform"
RANGE: Final = "range"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member as assignors see it."""

    topics: frozenset[TopicId]
    """That exist and that it consumes."""
    rack: str | None = None
    instance_id: str | None = None


Candidates: TypeAlias = Mapping[str, Candidate]
Shapes: TypeAlias = Mapping[TopicId, TopicShape]
Target: TypeAlias = Mapping[TopicId, Mapping[str, Sequence[int]]]
"""Partitions of each topic by member; members without any are left out."""


def check_assignor(name: str) -> str:
    """Return the name of an assignor that there is, else raise `malformed_request`."""
    if name in _ASSIGNORS:
        return name
    detail = f"assignor {name!a:.60} does not exist; there are {', '.join(sorted(_ASSIGNORS))}"
    raise ProblemError("malformed_request", detail)


def assign(assignor: str, members: Candidates, topics: Shapes, before: Target) -> Target:
    """Compute the target: every partition of every topic that somebody consumes goes to one of those members.

    Raises `malformed_request` for an assignor that does not exist.
    """
    return _ASSIGNORS[check_assignor(assignor)](members, topics, before)


def assign_uniform(members: Candidates, topics: Shapes, before: Target) -> Target:
    """Share all partitions together: numbers differ by one at most where all consume the same topics."""
    ordered = {member_id: members[member_id] for member_id in sorted(members)}
    consumed = {topic_id for candidate in members.values() for topic_id in candidate.topics}
    shapes = {topic_id: topics[topic_id] for topic_id in sorted(consumed)}
    held, free = _kept(ordered, shapes, before)
    if any(len(candidate.topics) < len(shapes) for candidate in ordered.values()):
        subscribers = {
            topic_id: [member_id for member_id, each in ordered.items() if topic_id in each.topics]
            for topic_id in shapes
        }
        assign_uneven(held, free, subscribers, (_rack_of(ordered), _racks(shapes)))
    elif ordered:
        _share(held, free, ordered, _racks(shapes))
    return _by_topic(held)


def assign_range(members: Candidates, topics: Shapes, before: Target) -> Target:
    """Share each topic by itself; topics with as many partitions and the same consumers are shared alike."""
    order = sorted(members, key=lambda member_id: _static_first(member_id, members[member_id]))
    alike: dict[tuple[int, tuple[str, ...]], list[TopicId]] = {}
    for topic_id in sorted(topics):
        subscribers = tuple(member_id for member_id in order if topic_id in members[member_id].topics)
        if subscribers:
            alike.setdefault((topics[topic_id].partitions, subscribers), []).append(topic_id)
    target: dict[TopicId, Mapping[str, Sequence[int]]] = {}
    for (partitions, subscribers), topic_ids in alike.items():
        candidates = {member_id: members[member_id] for member_id in subscribers}
        shared = _shared_range(partitions, candidates, [topics[each] for each in topic_ids], before)
        target.update(dict.fromkeys(topic_ids, shared))
    return target


_ASSIGNORS: Final[Mapping[str, Callable[[Candidates, Shapes, Target], Target]]] = {
    UNIFORM: assign_uniform,
    RANGE: assign_range,
}


def _kept(members: Candidates, shapes: Shapes, before: Target) -> tuple[dict[str, list[Place]], list[Place]]:
    """Divide the partitions: what members may keep of the target before, and what is free."""
    held: dict[str, list[Place]] = {member_id: [] for member_id in members}
    free: list[Place] = []
    for topic_id, shape in shapes.items():
        unowned = set(range(shape.partitions))
        for member_id, partitions in before.get(topic_id, {}).items():
            if member_id in members and topic_id in members[member_id].topics:
                keeps = unowned.intersection(partitions)
                held[member_id] += [(topic_id, partition) for partition in sorted(keeps)]
                unowned -= keeps
        free += [(topic_id, partition) for partition in sorted(unowned)]
    return held, free


def _share(
    held: dict[str, list[Place]],
    free: list[Place],
    members: Candidates,
    racks: Mapping[Place, frozenset[str]],
    *,
    in_ranges: bool = False,
) -> None:
    """Bring members that consume the same to their quotas, in place."""
    total = len(free) + sum(map(len, held.values()))
    quota = quotas({member_id: len(places) for member_id, places in held.items()}, total)
    for member_id, places in held.items():
        surplus = len(places) - quota[member_id]
        if surplus > 0:
            free += surrender(places, surplus, members[member_id].rack, racks)
    open_places = {member_id: quota[member_id] - len(places) for member_id, places in held.items()}
    taken, left = near_places(sorted(free), open_places, _rack_of(members), racks)
    dealt = _in_ranges(left, open_places) if in_ranges else deal(left, open_places)
    for member_id, place in taken + dealt:
        held[member_id].append(place)


def _in_ranges(free: Sequence[Place], open_places: Mapping[str, int]) -> list[tuple[str, Place]]:
    """Give each member the next partitions in a row."""
    takers = [member_id for member_id, count in open_places.items() for _ in range(count)]
    return list(zip(takers, free, strict=True))


def _shared_range(
    partitions: int, members: Candidates, alike: Sequence[TopicShape], before: Target
) -> dict[str, tuple[int, ...]]:
    """Share the numbers of partitions, once for all topics that are alike."""
    first = alike[0].topic_id
    held: dict[str, list[Place]] = {member_id: [] for member_id in members}
    unowned = set(range(partitions))
    for shape in alike:
        for member_id, numbers in before.get(shape.topic_id, {}).items():
            if member_id in members:
                keeps = unowned.intersection(numbers)
                held[member_id] += [(first, partition) for partition in sorted(keeps)]
                unowned -= keeps
    racks: dict[Place, frozenset[str]] = {}
    for shape in alike:
        for partition, there in enumerate(shape.racks):
            racks[first, partition] = racks.get((first, partition), there) & there
    _share(held, [(first, partition) for partition in sorted(unowned)], members, racks, in_ranges=True)
    return {
        member_id: tuple(sorted(number for _, number in places))
        for member_id, places in held.items()
        if places
    }


def _static_first(member_id: str, candidate: Candidate) -> tuple[bool, str, str]:
    """Order for ranges: static members keep their place in it over a restart under another member id."""
    return candidate.instance_id is None, candidate.instance_id or "", member_id


def _rack_of(members: Candidates) -> dict[str, str]:
    return {member_id: each.rack for member_id, each in members.items() if each.rack is not None}


def _racks(shapes: Shapes) -> dict[Place, frozenset[str]]:
    return {
        (topic_id, partition): racks
        for topic_id, shape in shapes.items()
        for partition, racks in enumerate(shape.racks)
    }


def _by_topic(held: Mapping[str, Sequence[Place]]) -> dict[TopicId, dict[str, tuple[int, ...]]]:
    gathered: dict[TopicId, dict[str, list[int]]] = {}
    for member_id, places in held.items():
        for topic_id, partition in places:
            gathered.setdefault(topic_id, {}).setdefault(member_id, []).append(partition)
    return {
        topic_id: {member_id: tuple(sorted(partitions)) for member_id, partitions in by_member.items()}
        for topic_id, by_member in gathered.items()
    }
