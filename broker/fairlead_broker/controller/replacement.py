"""Choice of the brokers that take over a draining broker's replicas.

The controller's drain calls `replace_replicas`. The function is pure: the load of each broker is an argument, so
equal arguments give equal results.
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
    """Return the replicas with the leaving brokers replaced by other brokers.

    `brokers`: brokers that can get replicas. `racks`: racks of all known brokers. `load`: number of replicas on
    each broker. A broker in a rack without a replica is preferred, then the broker with the lowest load, then the
    lowest id. A replica is not moved if no broker can take it over.
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
