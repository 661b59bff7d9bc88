"""Who takes a replica over from a broker that is to keep none.

Called by the controller's drain. Pure: how much each broker keeps is an argument, and so the same arguments give the
same answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fairlead_api.identifiers import BrokerId
from fairlead_broker.controller.round_robin import PlaceableBroker


def replace_replicas(
    replicas: Sequence[BrokerId],
    leaving: Collection[BrokerId],
    brokers: Collection[PlaceableBroker],
    racks: Mapping[BrokerId, str | None],
    load: Mapping[BrokerId, int],
) -> tuple[BrokerId, ...]:
    """Return the replicas with others in the places of the leaving ones.

    `brokers` can be given replicas, `racks` are those of every broker that is known, `load` says how many replicas
    each keeps. A rack that has no replica is preferred, then the broker that keeps least, then the lowest id. Where
    nobody is left to take a place over, the replica stays.
    """
    placed = list(replicas)
    for place, broker in enumerate(replicas):
        if broker not in leaving:
            continue
        used = {racks.get(each) for n, each in enumerate(placed) if n != place}
        free = [each for each in brokers if each.broker not in placed and each.broker not in leaving]
        if free:
            best = min(free, key=lambda each: (each.rack in used, load.get(each.broker, 0), each.broker))
            placed[place] = best.broker
    return tuple(placed)
