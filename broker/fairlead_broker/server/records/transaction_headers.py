"""The header `Fairlead-Transaction` of produce calls with JSON, Arrow and CloudEvents bodies (rule 7.1.6).

Callers: the produce calls. Before records go to the leader, the broker that encodes the body writes the partition into
the record of the transaction, so that a commit need not name the partition.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.batch.batches import ProducerStamp
from fairlead_api.bodies.media_types import Header
from fairlead_api.identifiers import PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import TransactionId, parse_transaction_id
from fairlead_broker.runtime import Broker
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.routing.transaction_access import authorize, check_level

_TRANSACTION: Final = Header.TRANSACTION.lower().encode()
_NOT_TOGETHER: Final = tuple(
    header.lower().encode() for header in (Header.IDEMPOTENCY_KEY, Header.PRODUCER_ID, Header.PRODUCER_EPOCH)
)
_NO_SEQUENCE: Final = -1
"""Placeholder for the base sequence of a batch; the leader replaces it with the next sequence."""


def transaction_of(call: Call) -> TransactionId | None:
    """Return the transaction of a request, or None. Raises `malformed_request`.

    Of the producer headers, only `Fairlead-Base-Sequence` is allowed together with a transaction.
    """
    if _TRANSACTION not in call.headers:
        return None
    for name in _NOT_TOGETHER:
        if name in call.headers:
            raise ProblemError(
                "malformed_request",
                f"header {name.decode()} is not allowed together with {Header.TRANSACTION}",
                data={"parameter": name.decode()},
            )
    return parse_transaction_id(call.header_text(_TRANSACTION))


def refuse_transaction(call: Call, reason: str) -> None:
    """Raise `malformed_request` if a header names a transaction that the kind of body does not support."""
    if _TRANSACTION in call.headers:
        raise ProblemError(
            "malformed_request",
            f"header {Header.TRANSACTION} is not allowed here: {reason}",
            data={"parameter": Header.TRANSACTION},
        )


def stamp_of(transaction: TransactionId, sequence: int | None = None) -> ProducerStamp:
    """Return the producer of a batch in a transaction.

    With a sequence, the leader of the partition recognises a repeated request; without a sequence, the leader assigns
    the next one to the batch.
    """
    return ProducerStamp(
        transaction.producer_id,
        transaction.epoch,
        _NO_SEQUENCE if sequence is None else sequence,
        is_transactional=True,
    )


async def name_partition(
    call: Call, broker: Broker, transaction: TransactionId, topic_id: TopicId, partition: PartitionIndex
) -> None:
    """Add a partition to the record of the transaction. Raises the problem of a transaction that is not open."""
    check_level(broker)
    await broker.transactions.name_partition(
        transaction, topic_id, partition, lambda record: authorize(call.access, record)
    )
