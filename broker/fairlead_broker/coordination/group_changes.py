"""What the pure group decided, as operations of transactions.

For the coordinator's task. Every prefix of the portions is legal, so a write that breaks off leaves a group that
another coordinator goes on with.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead_broker.coordination.group_store import PORTION_BYTES_MAX, size_of
from fairlead_broker.coordination.protocol import OPERATIONS_MAX
from fairlead_broker.groups import GroupChange, GroupKey, MemberKey, StateKey, TargetKey
from fairlead_broker.registry.group_keys import GroupKeys
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.transactions import Delete, Operation, Put


def change_pieces(
    keys: GroupKeys, change: GroupChange, bytes_max: int = PORTION_BYTES_MAX
) -> Sequence[Sequence[Operation]]:
    """Divide a change into what single transactions take, to be written in this order.

    A record that is too large alone comes alone, for the store to refuse.
    """
    limit = OPERATIONS_MAX
    while True:
        pieces = [_operations(keys, portion) for portion in change.portions(limit)]
        if limit == 1 or all(sum(map(size_of, piece)) <= bytes_max for piece in pieces):
            return pieces
        limit //= 2


def _operations(keys: GroupKeys, change: GroupChange) -> list[Operation]:
    operations: list[Operation] = [
        Put(_key(keys, key), encode(record)) for key, record in change.puts.items()
    ]
    operations += [Delete(_key(keys, key)) for key in sorted(change.deletes, key=str)]
    return operations


def _key(keys: GroupKeys, key: GroupKey) -> str:
    match key:
        case StateKey():
            return keys.state
        case TargetKey(topic_id):
            return keys.target(topic_id)
        case MemberKey(member_id):
            return keys.member(member_id)
