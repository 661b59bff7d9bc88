"""Progress of moves in bytes, and the limit on the rate at which brokers copy replicas for moves.

The reconciler of Rebalances calls this module while moves are in progress.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairlead import Admin
from fairlead.errors import BrokerNotFoundError, InvalidConfigError
from fairlead_api.bodies.operations import ReplicaProgress
from fairlead_api.configuration import THROTTLED_RATE_KEY, ConfigSource
from fairlead_operator.brokers.calls import broker_deadline


async def set_rates(admin: Admin, rates: Mapping[int, int | None]) -> str:
    """Set the limit on the bytes per second that each broker copies for moves; None removes the limit.

    A broker that already has the limit is not changed. Returns the reason why a broker refuses the limit; empty if no
    broker refuses. Raises `BrokersUnavailable`.
    """
    for broker, rate in sorted(rates.items()):
        async with broker_deadline(f"rate of moves onto broker {broker}"):
            try:
                known = (await admin.broker_config(broker)).get(THROTTLED_RATE_KEY)
                own = known is not None and known.source is ConfigSource.BROKER
                if (known.value if known is not None and own else None) != (rate and str(rate)):
                    await admin.alter_broker_config(broker, {THROTTLED_RATE_KEY: rate})
            except BrokerNotFoundError:
                # The broker was removed from the cluster together with its configuration, and copies no replicas.
                continue
            except InvalidConfigError as error:
                return str(error)
    return ""


async def bytes_left(admin: Admin, partitions: Collection[tuple[str, int]]) -> int | None:
    """Return the bytes that the moves of these partitions, each a topic and an index, still have to copy.

    Returns None if a broker does not report its progress. Raises `BrokersUnavailable`.
    """
    async with broker_deadline("progress of the moves"):
        moves = await admin.reassignments()
    left = [
        _left(replica)
        for move in moves
        if (move.topic, move.partition) in partitions
        for replica in move.progress
        if replica.broker in move.adding
    ]
    known = [each for each in left if each is not None]
    return sum(known) if len(known) == len(left) else None


def _left(replica: ReplicaProgress) -> int | None:
    if replica.copied_bytes is None or replica.total_bytes is None:
        return None
    return max(0, replica.total_bytes - replica.copied_bytes)
