"""Transactions of Kafka clients, expressed as changes to the producer's transaction record.

In the first version of Kafka's transactions a client states one epoch for all transactions of a session. In the second
version (KIP-890) each transaction has its own epoch, as in the record. Each function gets the record as it was read and
returns the record to write, or a refusal. The module must not depend on the store, a clock or an event loop.
"""

from __future__ import annotations

import msgspec

from fairlead_api.identifiers import ProducerEpoch
from fairlead_broker.registry.transaction_records import (
    KafkaSession,
    Outcome,
    PendingOffset,
    PendingOffsets,
    TransactionRecord,
)
from fairlead_broker.transactions.decisions import (
    PARTITIONS_MAX,
    Fenced,
    NotFound,
    Partitions,
    Refusal,
    TooManyPartitions,
    merged,
)


class OtherGroup(Exception):
    """Raised for offsets of a second group in one transaction."""

    def __init__(self, group: str) -> None:
        super().__init__(f"the transaction already has offsets of group {group}")
        self.group = group


def open_epoch(
    record: TransactionRecord | None, stated: int, *, is_second_version: bool
) -> ProducerEpoch | Refusal:
    """Return the epoch of the open transaction of a client that states an epoch."""
    if record is None:
        return NotFound()
    if stated == record.epoch:
        return record.epoch
    session = record.kafka
    if session is not None and stated == session.epoch and not is_second_version:
        return record.epoch
    return NotFound() if stated > record.epoch else Fenced(record.epoch)


def with_partitions(record: TransactionRecord, partitions: Partitions) -> TransactionRecord | Refusal:
    """Return the record in which the open transaction includes partitions; `record` itself if nothing changes."""
    named = merged(record.named, partitions)
    if named == record.named:
        return record
    count = sum(map(len, named.values()))
    if count > PARTITIONS_MAX:
        return TooManyPartitions(count)
    return msgspec.structs.replace(record, named=named)


def with_offsets(record: TransactionRecord, offsets: PendingOffsets) -> TransactionRecord:
    """Return the record in which the open transaction includes offsets, which replace those of the same partitions.

    Raises `OtherGroup`.
    """
    session = record.kafka or KafkaSession(epoch=record.epoch)
    before = session.offsets
    entries: dict[tuple[str, int], PendingOffset] = {}
    if before is not None:
        if before.group != offsets.group:
            raise OtherGroup(before.group)
        entries = {(each.topic, each.partition): each for each in before.offsets}
    entries.update({(each.topic, each.partition): each for each in offsets.offsets})
    pending = msgspec.structs.replace(offsets, offsets=tuple(entries.values()))
    return msgspec.structs.replace(record, kafka=msgspec.structs.replace(session, offsets=pending))


def is_empty(record: TransactionRecord) -> bool:
    """Return whether the open transaction has neither partitions nor offsets."""
    return not record.named and (record.kafka is None or record.kafka.offsets is None)


def is_repeated_end(record: TransactionRecord, outcome: Outcome) -> bool:
    """Return whether a request to end the open transaction repeats the request that ended the previous transaction.

    In the first version of Kafka's transactions, both requests state the same epoch, and a client never ends a
    transaction without partitions and offsets.
    """
    session, ended = record.kafka, record.ended
    return (
        is_empty(record)
        and session is not None
        and record.epoch > session.epoch
        and ended is not None
        and ended.outcome is outcome
    )
