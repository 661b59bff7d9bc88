"""Transactions of producers as Kafka's clients state them: by transactional id, producer id and epoch.

The families of calls of producers use this module. It reads and changes the records of producers through the runtime;
the pure module `transactions.kafka_sessions` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.decided_transactions import DecidedTransaction
from fairlead_api.bodies.group_requests import OffsetCommit
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.transactions import CommitTransactionRequest, TransactionOffsets
from fairlead_api.identifiers import BrokerId, ProducerEpoch, ProducerId, TimestampUs, check_group_name
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_api.transaction_id import TransactionId, parse_transaction_id
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.peers import messages
from fairlead_broker.peers.forwarded_callers import audited_caller_headers
from fairlead_broker.peers.peers import ANSWER_MARGIN_SECONDS, PeerUnavailable, problem_of
from fairlead_broker.registry.transaction_records import Outcome, PendingOffsets, TransactionRecord
from fairlead_broker.runtime import Broker, refusals
from fairlead_broker.runtime.peer_serving.forwarded_calls import ForwardedCalls
from fairlead_broker.runtime.transactions.transactions import check_level
from fairlead_broker.transactions.decisions import (
    KAFKA_EPOCH_MAX,
    Begin,
    Decide,
    NotFound,
    Refusal,
    is_begun,
)
from fairlead_broker.transactions.kafka_sessions import is_empty, is_repeated_end, open_epoch

COORDINATOR_SECONDS_MAX: Final = 20.0
"""Maximum number of seconds that the coordinator of a group may take to write offsets and a decision."""
_ATTEMPTS: Final = 2
"""Number of attempts to find the coordinator of a group; the second attempt looks it up again."""


@dataclass(frozen=True, slots=True)
class StatedProducer:
    """Transactional producer as a client states it."""

    name: str
    """Transactional id, which is the name of the producer."""
    producer_id: ProducerId
    epoch: ProducerEpoch
    is_second_version: bool
    """Whether the client uses the second version of Kafka's transactions, with an epoch for each transaction."""

    @property
    def transaction(self) -> TransactionId:
        """Transaction with the stated epoch."""
        return TransactionId(self.producer_id, self.epoch)


class TransactionSessions:
    """Transactions of the clients of Kafka's protocol."""

    def __init__(self, broker: Broker, forwarded: ForwardedCalls) -> None:
        self._broker = broker
        self._forwarded = forwarded

    def check(self, call: KafkaCall, name: str) -> None:
        """Raise a problem unless the caller may use the transactional id now."""
        call.access.require(Operation.WRITE, Kind.PRODUCER, name)
        check_group_name(name)
        self._broker.admit()
        check_level(self._broker.feature_level)

    async def begin(
        self, call: KafkaCall, name: str, timeout_ms: int, previous: TransactionId | None = None
    ) -> TransactionId:
        """Begin a session of a transactional id, which aborts its open transaction and fences earlier sessions.

        `previous`: transaction that the client states as its own; the call is refused if it is not the newest. If the
        client has begun the session before, without an answer, the call returns this session.
        """
        self.check(call, name)
        if previous is not None and await self._broker.transactions.find(name) != previous.producer_id:
            raise refusals.from_transactions(NotFound(), previous)

        def authorize(record: TransactionRecord) -> None:
            if previous is not None and not is_begun(record, previous.epoch):
                opened = open_epoch(record, previous.epoch, is_second_version=False)
                if not isinstance(opened, int):
                    raise refusals.from_transactions(opened, previous)

        stated = None if previous is None else previous.epoch
        wanted = Begin(timeout_ms, name, owner=call.access.owner, is_kafka=True, previous=stated)
        return (await self._broker.transactions.begin(wanted, authorize)).transaction

    async def opened(self, call: KafkaCall, stated: StatedProducer) -> TransactionRecord:
        """Return the record of a producer with the stated open transaction, read after the call began."""
        return await self.change(call, stated, lambda record: record)

    async def change(
        self,
        call: KafkaCall,
        stated: StatedProducer,
        changed: Callable[[TransactionRecord], TransactionRecord | Refusal],
    ) -> TransactionRecord:
        """Change the record of a producer while the stated transaction is open; return the new record.

        `changed` returns the record itself if nothing has to be written.
        """
        self.check(call, stated.name)

        def change(
            record: TransactionRecord | None, now_us: TimestampUs
        ) -> tuple[TransactionRecord | None, TransactionRecord]:
            del now_us
            opened = open_epoch(
                _of_name(record, stated), stated.epoch, is_second_version=stated.is_second_version
            )
            if not isinstance(opened, int):
                raise refusals.from_transactions(opened, stated.transaction)
            assert record is not None, "an open transaction has a record"
            outcome = changed(record)
            if not isinstance(outcome, TransactionRecord):
                raise refusals.from_transactions(outcome, stated.transaction)
            return (None if outcome is record else outcome), outcome

        return await self._broker.transactions.change(stated.producer_id, change)

    async def end(self, call: KafkaCall, stated: StatedProducer, outcome: Outcome) -> TransactionId:
        """Commit or abort the stated transaction; return the next transaction of the producer."""
        self.check(call, stated.name)
        record = _of_name(await self._broker.transactions.standing(stated.producer_id), stated)
        epoch = stated.epoch
        if not stated.is_second_version:
            opened = open_epoch(record, stated.epoch, is_second_version=False)
            if not isinstance(opened, int):
                raise refusals.from_transactions(opened, stated.transaction)
            assert record is not None, "an open transaction has a record"
            epoch = opened
            if is_repeated_end(record, outcome):
                return TransactionId(stated.producer_id, epoch)
            if is_empty(record):
                if outcome is Outcome.ABORT:
                    # AddOffsetsToTxn writes nothing; a client whose TxnOffsetCommit then fails aborts.
                    return stated.transaction
                raise ProblemError(
                    "invalid_transaction",
                    f"transaction {stated.transaction} has no partitions and no offsets",
                    data={"transaction": str(stated.transaction)},
                )
        following = await self._decide(
            call, stated, TransactionId(stated.producer_id, epoch), record, outcome
        )
        if following is not None and following.epoch <= KAFKA_EPOCH_MAX:
            return following
        if not stated.is_second_version:
            return stated.transaction
        assert record is not None, "a decided transaction has a record"
        return await self.begin(call, stated.name, record.timeout_ms)

    async def _decide(
        self,
        call: KafkaCall,
        stated: StatedProducer,
        transaction: TransactionId,
        record: TransactionRecord | None,
        outcome: Outcome,
    ) -> TransactionId | None:
        """Write the decision with the pending offsets of the transaction; return the next transaction."""

        def authorize(found: TransactionRecord) -> None:
            _of_name(found, stated)

        is_current = record is not None and record.epoch == transaction.epoch
        if outcome is Outcome.COMMIT and is_current:
            assert record is not None, "the current transaction has a record"
            if record.kafka is not None and record.kafka.offsets is not None:
                return await self._commit_with(call, transaction, record.kafka.offsets)
        request = Decide(transaction.epoch, outcome, is_kafka=True)
        decided = await self._broker.transactions.decide(transaction.producer_id, request, authorize)
        return None if decided.next is None else TransactionId(transaction.producer_id, decided.next)

    async def _commit_with(
        self, call: KafkaCall, transaction: TransactionId, pending: PendingOffsets
    ) -> TransactionId | None:
        """Commit a transaction together with offsets of a group, at the coordinator of the group."""
        offsets = request_of(pending)
        for last in range(_ATTEMPTS):
            coordinator = await self._broker.groups.coordinator_elsewhere(pending.group, again=bool(last))
            try:
                if coordinator is None:
                    return await self._commit_here(call, transaction, offsets)
                return await self._commit_at(coordinator, call, transaction, offsets)
            except ProblemError as problem:
                if last or problem.code != "not_coordinator":
                    raise
        raise AssertionError("the last attempt returns or raises")  # pragma: no cover

    async def _commit_here(
        self, call: KafkaCall, transaction: TransactionId, offsets: TransactionOffsets
    ) -> TransactionId | None:
        producer_id = transaction.producer_id
        decided = await self._broker.transactions.commit_with(
            {producer_id: Decide(transaction.epoch, Outcome.COMMIT, has_offsets=True, is_kafka=True)},
            lambda record: None,
            lambda decision: self._broker.groups.decide(offsets.group, offsets, decision, call.access.owner),
        )
        following = decided[producer_id].next
        return None if following is None else TransactionId(producer_id, following)

    async def _commit_at(
        self, coordinator: BrokerId, call: KafkaCall, transaction: TransactionId, offsets: TransactionOffsets
    ) -> TransactionId | None:
        headers = [*audited_caller_headers(call.access, call.client.address), ("content-type", JSON)]
        try:
            heard = await self._forwarded.ask(
                "commit_transaction",
                coordinator,
                "POST",
                f"/v1/transactions/{transaction}:commit",
                headers,
                messages.encode(CommitTransactionRequest(offsets=offsets)),
                COORDINATOR_SECONDS_MAX + ANSWER_MARGIN_SECONDS,
            )
        except PeerUnavailable as unavailable:
            raise ProblemError(
                "coordination_unavailable",
                f"the coordinator of group {offsets.group} does not answer: {unavailable}",
                side_effect=SideEffect.MAYBE if unavailable.sent else SideEffect.NONE,
            ) from unavailable
        if heard.status >= HTTPStatus.BAD_REQUEST:
            raise problem_of(heard)
        following = msgspec.json.decode(heard.body, type=DecidedTransaction).next
        return None if following is None else parse_transaction_id(following)


def request_of(pending: PendingOffsets) -> TransactionOffsets:
    """Return pending offsets as the commit of a group."""
    return TransactionOffsets(
        group=pending.group,
        member_id=pending.member_id,
        member_epoch=pending.member_epoch,
        offsets=tuple(
            OffsetCommit(
                topic=each.topic,
                topic_id=each.topic_id,
                partition=each.partition,
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
            )
            for each in pending.offsets
        ),
    )


def transaction_error(problem: ProblemError, *, knows_fenced: bool) -> KafkaError:
    """Return the error for a problem of a transaction; `knows_fenced`: whether the version has PRODUCER_FENCED."""
    error = error_of(problem, Family.TRANSACTION)
    if error is KafkaError.PRODUCER_FENCED and not knows_fenced:
        return KafkaError.INVALID_PRODUCER_EPOCH
    return error


def _of_name(record: TransactionRecord | None, stated: StatedProducer) -> TransactionRecord | None:
    """Return the record, or None for a producer without a record. Raises `transaction_not_found` for another name."""
    if record is not None and record.name != stated.name:
        raise refusals.from_transactions(NotFound(), stated.transaction)
    return record
