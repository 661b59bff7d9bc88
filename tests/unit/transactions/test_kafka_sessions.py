"""Transactions of Kafka's clients in the record of a producer: sessions with one epoch, partitions, offsets, ends."""

from __future__ import annotations

import msgspec
import pytest

from fairlead_broker.registry.records import decode, encode
from fairlead_broker.registry.transaction_records import (
    EndReason,
    KafkaSession,
    Outcome,
    PendingOffset,
    PendingOffsets,
    TransactionRecord,
)
from fairlead_broker.transactions.decisions import (
    KAFKA_EPOCH_MAX,
    PARTITIONS_MAX,
    Begin,
    Decide,
    Fenced,
    NotFound,
    OffsetsPending,
    TooManyPartitions,
    Write,
    begin,
    decide,
    is_begun,
    restored,
)
from fairlead_broker.transactions.kafka_sessions import (
    OtherGroup,
    is_empty,
    is_repeated_end,
    open_epoch,
    with_offsets,
    with_partitions,
)

ORDERS = "1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"
NOW = 1_000_000


def session(epoch: int = 4, first: int = 4, **fields: object) -> TransactionRecord:
    """Return the record of a Kafka client with an open transaction."""
    given = {"name": "loader", "epoch": epoch, "timeout_ms": 60_000, "used_us": NOW, **fields}
    return TransactionRecord(**given, kafka=KafkaSession(epoch=first))  # type: ignore[arg-type]


def pending(*offsets: tuple[int, int], group: str = "billing") -> PendingOffsets:
    """Return offsets of a group for partitions of one topic."""
    return PendingOffsets(
        group=group,
        member_id=None,
        member_epoch=-1,
        offsets=tuple(
            PendingOffset(
                topic="orders",
                topic_id=ORDERS,  # type: ignore[arg-type]
                partition=partition,
                offset=offset,
                leader_epoch=None,
                metadata="",
            )
            for partition, offset in offsets
        ),
    )


def ended(
    record: TransactionRecord, outcome: Outcome, reason: EndReason = EndReason.CLIENT
) -> TransactionRecord:
    """Return the record after the open transaction has ended."""
    request = Decide(record.epoch, outcome, reason, is_kafka=reason is EndReason.CLIENT)
    result = decide(record, request, frozenset(), NOW)  # type: ignore[arg-type]
    assert isinstance(result, Write), result
    return result.record


def named(record: TransactionRecord, *partitions: int) -> TransactionRecord:
    """Return the record with partitions of the open transaction."""
    result = with_partitions(record, {ORDERS: partitions})  # type: ignore[dict-item]
    assert isinstance(result, TransactionRecord), result
    return result


def stated(record: TransactionRecord | None, epoch: int, *, second: bool = False) -> object:
    """Return the epoch of the open transaction for a client that states an epoch."""
    return open_epoch(record, epoch, is_second_version=second)


def test_a_session_has_one_stated_epoch_for_all_its_transactions() -> None:
    """A client of the first version states the first epoch of its session; other epochs are fenced or unknown."""
    record = session(epoch=7, first=4)

    assert [stated(record, epoch) for epoch in (3, 4, 5, 7, 8)] == [Fenced(7), 7, Fenced(7), 7, NotFound()]  # type: ignore[arg-type]
    assert [stated(record, epoch, second=True) for epoch in (4, 7)] == [Fenced(7), 7]  # type: ignore[arg-type]
    assert stated(None, 0) == NotFound()


def test_a_session_lasts_until_another_cause_ends_a_transaction() -> None:
    """A client may keep its epoch after its own commits and aborts; a timeout, a restore or a new session fences it."""
    record = session()
    committed = ended(named(record, 0), Outcome.COMMIT)
    begun = begin(committed, Begin(1000, "loader", is_kafka=True), NOW)  # type: ignore[arg-type]
    plain = begin(committed, Begin(1000, "loader"), NOW)  # type: ignore[arg-type]

    assert stated(committed, 4) == 5
    assert stated(ended(record, Outcome.ABORT), 4) == 5
    assert stated(ended(record, Outcome.ABORT, EndReason.TIMEOUT), 4) == Fenced(5)  # type: ignore[arg-type]
    assert stated(restored(record, 6, NOW), 4) == Fenced(7)  # type: ignore[arg-type]
    assert begun is not None
    assert (stated(begun, 4), stated(begun, 6)) == (Fenced(6), 6)  # type: ignore[arg-type]
    assert plain is not None
    assert stated(plain, 4) == Fenced(6)  # type: ignore[arg-type]


def test_a_session_begins_with_an_epoch_of_16_bits() -> None:
    """A producer whose epochs do not fit in Kafka's messages gets another producer id."""
    new = begin(None, Begin(1000, "loader", is_kafka=True), NOW)  # type: ignore[arg-type]
    last = begin(session(KAFKA_EPOCH_MAX - 1), Begin(1000, "loader", is_kafka=True), NOW)  # type: ignore[arg-type]

    assert new is not None
    assert new.kafka == KafkaSession(epoch=0)  # type: ignore[arg-type]
    assert last is not None
    assert last.epoch == KAFKA_EPOCH_MAX
    assert begin(last, Begin(1000, "loader", is_kafka=True), NOW) is None  # type: ignore[arg-type]


def test_a_repeated_begin_returns_the_session() -> None:
    """A client that states its epoch begins one session, until it uses the session or another client begins one."""
    request = Begin(1000, "loader", is_kafka=True, previous=4)  # type: ignore[arg-type]
    begun = begin(session(), request, NOW)  # type: ignore[arg-type]
    assert begun is not None
    assert begun.kafka == KafkaSession(epoch=5, previous=4)  # type: ignore[arg-type]
    other = begin(session(), Begin(1000, "loader", is_kafka=True), NOW)  # type: ignore[arg-type]
    assert other is not None
    used = named(begun, 0)

    assert begin(begun, request, NOW) is begun  # type: ignore[arg-type]
    assert decode("transactions/1", encode(begun), TransactionRecord) == begun
    assert not is_begun(begun, 3)  # type: ignore[arg-type]
    for record in (used, with_offsets(begun, pending((0, 5))), ended(used, Outcome.ABORT), other):
        assert not is_begun(record, 4)  # type: ignore[arg-type]


def test_partitions_are_added_once_and_limited() -> None:
    """Partitions join those of the transaction; nothing is written for known ones, or beyond the limit."""
    record = named(session(), 3, 1)

    assert record.named == {ORDERS: (1, 3)}
    assert named(record, 1) is record
    assert with_partitions(record, {ORDERS: range(PARTITIONS_MAX + 1)}) == TooManyPartitions(
        PARTITIONS_MAX + 1
    )  # type: ignore[dict-item]


def test_offsets_of_one_group_replace_earlier_ones() -> None:
    """Offsets of the open transaction are kept by partition, and only for one group."""
    plain = msgspec.structs.replace(session(), kafka=None)
    record = with_offsets(with_offsets(plain, pending((0, 5), (1, 7))), pending((1, 8)))

    assert record.kafka is not None
    assert record.kafka.offsets == pending((0, 5), (1, 8))
    with pytest.raises(OtherGroup):
        with_offsets(record, pending((0, 6), group="other"))


def test_the_end_of_a_transaction_drops_its_offsets() -> None:
    """The next transaction of a session has no offsets."""
    record = with_offsets(session(), pending((0, 5)))
    result = decide(
        record, Decide(record.epoch, Outcome.COMMIT, has_offsets=True, is_kafka=True), frozenset(), NOW
    )  # type: ignore[arg-type]

    assert isinstance(result, Write)
    assert result.record.kafka == KafkaSession(epoch=4)  # type: ignore[arg-type]


def test_a_decision_by_another_client_ends_the_session() -> None:
    """An older client, which states one epoch for all its transactions, cannot go on after an abort by id.

    A commit by id would drop the client's offsets, so it is refused; the same offsets come from the client itself.
    """
    record = named(session(), 0)
    with_pending = with_offsets(record, pending((0, 5)))
    aborted = decide(with_pending, Decide(record.epoch, Outcome.ABORT), frozenset(), NOW)  # type: ignore[arg-type]
    committed = decide(record, Decide(record.epoch, Outcome.COMMIT), frozenset(), NOW)  # type: ignore[arg-type]
    refused = [
        decide(
            with_pending,
            Decide(record.epoch, Outcome.COMMIT, has_offsets=True, offsets=offsets),
            frozenset(),
            NOW,
        )  # type: ignore[arg-type]
        for offsets in (None, pending((0, 6)))
    ]
    own = Decide(record.epoch, Outcome.COMMIT, has_offsets=True, offsets=pending((0, 5)))
    forwarded = decide(with_pending, own, frozenset(), NOW)  # type: ignore[arg-type]

    assert isinstance(aborted, Write)
    assert isinstance(committed, Write)
    assert isinstance(forwarded, Write)
    assert [stated(each.record, 4) for each in (aborted, committed, forwarded)] == [Fenced(5), Fenced(5), 5]  # type: ignore[arg-type]
    assert refused == [OffsetsPending("billing")] * 2


def test_a_repeated_end_differs_from_an_end_without_a_transaction() -> None:
    """A request with the outcome of the previous transaction is a repetition while the open one is empty."""
    committed = ended(named(session(), 0), Outcome.COMMIT)

    assert is_empty(committed)
    assert is_repeated_end(committed, Outcome.COMMIT)
    assert not is_repeated_end(committed, Outcome.ABORT)
    assert not is_repeated_end(session(), Outcome.COMMIT)
    assert not is_repeated_end(named(committed, 1), Outcome.COMMIT)
    assert not is_empty(with_offsets(committed, pending((0, 5))))
    assert is_empty(msgspec.structs.replace(committed, kafka=None))


def test_a_session_is_written_and_read() -> None:
    """A record keeps the session with its offsets in the store; a record without one has no field for it."""
    record = with_offsets(session(), pending((0, 5)))
    plain = msgspec.structs.replace(record, kafka=None)

    assert decode("transactions/1", encode(record), TransactionRecord) == record
    assert b"kafka" not in encode(plain)
