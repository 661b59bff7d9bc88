"""Keys and records of transactions."""

from __future__ import annotations

from fairlead_api.identifiers import ProducerEpoch, ProducerId, TimestampUs, TopicId
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import decode, encode
from fairlead_broker.registry.transaction_records import (
    EndedTransaction,
    EndReason,
    Outcome,
    TransactionRecord,
    UnfinishedCommit,
)

TOPIC = TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b")


def test_a_record_is_read_as_written() -> None:
    """A transaction record keeps nested entries and unknown fields, and its key begins with the prefix of its kind."""
    keys = Keys("prod")
    key = keys.transaction(ProducerId(17))
    ended = EndedTransaction(
        epoch=ProducerEpoch(4), outcome=Outcome.COMMIT, reason=EndReason.CLIENT, at_us=TimestampUs(7)
    )
    record = TransactionRecord(
        name="billing",
        epoch=ProducerEpoch(5),
        timeout_ms=1000,
        ended=ended,
        named={TOPIC: (0, 2)},
        unfinished=(UnfinishedCommit(epoch=ProducerEpoch(4), partitions={TOPIC: (1,)}, unknown={"new": 1}),),
        used_us=TimestampUs(7),
        unknown={"later": True},
    )

    assert key == f"{keys.transactions}17"
    assert decode(key, encode(record), TransactionRecord) == record
