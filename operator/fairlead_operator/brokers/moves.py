"""Progress of moves in bytes, as the brokers report it.

Called by the reconciler of Rebalances while moves are in progress.
"""

from __future__ import annotations

from collections.abc import Collection

from fairlead import Admin
from fairlead_api.bodies.operations import ReplicaProgress
from fairlead_operator.brokers.calls import broker_deadline


async def bytes_left(admin: Admin, partitions: Collection[tuple[str, int]]) -> int | None:
    """Return the bytes that the moves of these partitions, each a topic and a number, still have to copy.

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
