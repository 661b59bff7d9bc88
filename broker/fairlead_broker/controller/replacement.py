"""Choice of the brokers that take over the replicas of a draining broker.

The controller's drain calls `replace_replicas`. The function is pure: the load of each broker is an argument, so the
same arguments give the same answer.
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
    """Return the replicas with other brokers in place of the leaving brokers.

    `brokers` has the brokers that can take replicas, `racks` the racks of all known brokers, and `load` the
    number of replicas on each broker. A broker in a rack without a replica is preferred, then the broker with the
    least load, then the lowest id. A replica stays if no broker can take it over.
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
