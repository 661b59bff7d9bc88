"""The uniform assignor where members consume different topics, so that equal shares may not exist.

A free partition goes to its least loaded consumer, a near one among equals; then partitions move from a member to
another consumer of their topic as long as that one has at least two less. At the end no single move would make the
shares more equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups.filling import Place, Racks

Nearness: TypeAlias = tuple[Mapping[str, str], Racks]
"""Racks of members, as far as they have one, and of partitions."""


def assign_uneven(
    held: dict[str, list[Place]],
    free: Sequence[Place],
    subscribers: Mapping[TopicId, Sequence[str]],
    nearness: Nearness,
) -> None:
    """Give out what is free and move what must be moved, in place. Every topic has a subscriber."""
    load = {member_id: len(places) for member_id, places in held.items()}
    by_topic: dict[TopicId, dict[str, list[int]]] = {topic_id: {} for topic_id in subscribers}
    for member_id, places in held.items():
        for topic_id, partition in places:
            by_topic[topic_id].setdefault(member_id, []).append(partition)
    unowned: dict[TopicId, list[Place]] = {}
    for place in free:
        unowned.setdefault(place[0], []).append(place)
    # Topics with few consumers first: the others can still make up for what they do to the balance.
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
    """Give each free partition of one topic to a least loaded taker, to a near one if there is one among them."""
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
    """Return the least loaded member; entries of those that took something meanwhile are out of date."""
    while True:
        known_load, member_id = heap[0]
        if known_load == load[member_id]:
            return member_id
        heapreplace(heap, (load[member_id], member_id))


def _level(by_member: dict[str, list[int]], takers: Sequence[str], load: dict[str, int]) -> bool:
    """Move partitions of one topic until no move helps; what was given out last goes first. Say if any moved."""
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
        # Entries of those that gave or took meanwhile are out of date.
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
