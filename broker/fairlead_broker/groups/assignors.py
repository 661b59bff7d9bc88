"""Computation of a group's target: the partitions that each member should have.

`uniform` (the default) distributes all partitions of the group equally. `range` distributes each topic separately and
assigns equal partition numbers of different topics to the same member, so that the member can join the topics.
The two assignors are sticky: a partition moves only if balance requires the move. The functions are pure: they compute
each target from the subscriptions, the topics and the previous target.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Final, TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups.subscriptions import TopicShape

Place: TypeAlias = tuple[TopicId, int]
"""A partition, as topic id and partition number."""
Racks: TypeAlias = Mapping[Place, frozenset[str]]
"""Racks of the replicas of each partition, where known."""


def quotas(counts: Mapping[str, int], total: int) -> dict[str, int]:
    """Divide `total` equally among the members.

    The remainder goes to the members with the most partitions, so that they release fewer. Among members with
    equal counts, the order of `counts` decides.
    """
    low, extra = divmod(total, len(counts))
    fullest_first = sorted(counts, key=counts.__getitem__, reverse=True)
    return {member: low + (place < extra) for place, member in enumerate(fullest_first)}


def surrender(held: list[Place], surplus: int, rack: str | None, racks: Racks) -> list[Place]:
    """Remove `surplus` partitions from a member's partitions, and return the removed partitions.

    Partitions without a replica in the member's rack are removed first. Further partitions are removed from the topic
    of which the member has the most partitions, highest number first, so that every topic stays spread across the
    members.
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
    """Assign partitions to members in the rack of one of their replicas, and decrease the free slots in `open_places`.

    Returns the assignments, and the partitions for which no member in a replica's rack has a free slot. A
    partition is assigned to the rack with the most free slots.
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
    """Assign partitions in turn to members with free slots, so that adjacent partitions go to different members."""
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


UNIFORM: Final = "uniform"
RANGE: Final = "range"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Facts about a member that assignors use."""

    topics: frozenset[TopicId]
    """Ids of the existing topics that the member consumes."""
    rack: str | None = None
    instance_id: str | None = None


Candidates: TypeAlias = Mapping[str, Candidate]
Shapes: TypeAlias = Mapping[TopicId, TopicShape]
Target: TypeAlias = Mapping[TopicId, Mapping[str, Sequence[int]]]
"""Partitions by topic and member. Members without a partition are left out."""


def check_assignor(name: str) -> str:
    """Return the name of a known assignor. Raises `malformed_request` for an unknown name."""
    if name in _ASSIGNORS:
        return name
    detail = f"assignor {name!a:.60} does not exist; the assignors are {', '.join(sorted(_ASSIGNORS))}"
    raise ProblemError("malformed_request", detail)


def assign(assignor: str, members: Candidates, topics: Shapes, before: Target) -> Target:
    """Compute the target: assign every partition of a consumed topic to a member that consumes the topic.

    Raises `malformed_request` for an unknown assignor.
    """
    return _ASSIGNORS[check_assignor(assignor)](members, topics, before)


def assign_uniform(members: Candidates, topics: Shapes, before: Target) -> Target:
    """Distribute the partitions of all topics together.

    If all members consume the same topics, counts differ by at most one.
    """
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
    """Distribute the partitions of each topic separately.

    Topics with equal partition counts and the same consumers are distributed in the same way.
    """
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
    """Divide the partitions into partitions that members keep from the previous target, and free partitions."""
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
    """Change `held` so that each member has its quota of partitions. All members must consume the same topics."""
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
    """Assign each member a contiguous range of the free partitions, in ascending order."""
    takers = [member_id for member_id, count in open_places.items() for _ in range(count)]
    return list(zip(takers, free, strict=True))


def _shared_range(
    partitions: int, members: Candidates, alike: Sequence[TopicShape], before: Target
) -> dict[str, tuple[int, ...]]:
    """Distribute partition indexes once for all topics that have the same partition count and consumers."""
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
    """Return the sort key for ranges. A static member keeps its position when it restarts with a new member id."""
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


Nearness: TypeAlias = tuple[Mapping[str, str], Racks]
"""Rack of each member whose rack is known, and the racks of each partition's replicas."""


def assign_uneven(
    held: dict[str, list[Place]],
    free: Sequence[Place],
    subscribers: Mapping[TopicId, Sequence[str]],
    nearness: Nearness,
) -> None:
    """Assign free partitions and move partitions to balance the members in `held`. Every topic needs a subscriber."""
    load = {member_id: len(places) for member_id, places in held.items()}
    by_topic: dict[TopicId, dict[str, list[int]]] = {topic_id: {} for topic_id in subscribers}
    for member_id, places in held.items():
        for topic_id, partition in places:
            by_topic[topic_id].setdefault(member_id, []).append(partition)
    unowned: dict[TopicId, list[Place]] = {}
    for place in free:
        unowned.setdefault(place[0], []).append(place)
    # Topics with few consumers are assigned first, since later topics can still correct an imbalance.
    for topic_id in sorted(unowned, key=lambda each: (len(subscribers[each]), each)):
        _give_out(unowned[topic_id], by_topic[topic_id], subscribers[topic_id], load, nearness)
    while sum(_level(by_topic[topic_id], subscribers[topic_id], load) for topic_id in subscribers):
        pass
    for member_id in held:
        held[member_id] = []
    for topic_id, by_member in by_topic.items():
        for member_id, partitions in by_member.items():
            held[member_id] += [(topic_id, partition) for partition in partitions]


def _give_out(
    free: Sequence[Place],
    by_member: dict[str, list[int]],
    takers: Sequence[str],
    load: dict[str, int],
    nearness: Nearness,
) -> None:
    """Assign each free partition of one topic to a least loaded member, preferably in the rack of a replica."""
    rack_of, racks = nearness
    lightest = [(load[member_id], member_id) for member_id in takers]
    heapify(lightest)
    by_rack: dict[str, list[tuple[int, str]]] = {}
    for rack in {rack for place in free for rack in racks.get(place, ())}:
        near = [entry for entry in lightest if rack_of.get(entry[1]) == rack]
        if near:
            heapify(near)
            by_rack[rack] = near
    for place in free:
        member_id = _lightest(lightest, load)
        for rack in sorted(racks.get(place, ())):
            near_id = _lightest(by_rack[rack], load) if rack in by_rack else member_id
            if near_id != member_id and load[near_id] == load[member_id]:
                member_id = near_id
                break
        by_member.setdefault(member_id, []).append(place[1])
        load[member_id] += 1


def _lightest(heap: list[tuple[int, str]], load: Mapping[str, int]) -> str:
    """Return the least loaded member, and update heap entries whose load is outdated."""
    while True:
        known_load, member_id = heap[0]
        if known_load == load[member_id]:
            return member_id
        heapreplace(heap, (load[member_id], member_id))


def _level(by_member: dict[str, list[int]], takers: Sequence[str], load: dict[str, int]) -> bool:
    """Move partitions of one topic until its consumers are balanced, and return whether any partition was moved."""
    lightest = [(load[member_id], member_id) for member_id in takers]
    heaviest = [(-load[member_id], member_id) for member_id, partitions in by_member.items() if partitions]
    heapify(lightest)
    heapify(heaviest)
    moved = False
    while heaviest:
        negative_load, giver = heaviest[0]
        if not by_member[giver]:
            heappop(heaviest)
            continue
        # An entry whose load differs from the member's current load is outdated.
        if -negative_load != load[giver]:
            heapreplace(heaviest, (-load[giver], giver))
            continue
        taker = _lightest(lightest, load)
        if load[giver] - load[taker] < 2:
            break
        by_member.setdefault(taker, []).append(by_member[giver].pop())
        load[giver] -= 1
        load[taker] += 1
        moved = True
    return moved
