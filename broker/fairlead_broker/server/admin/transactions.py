"""Calls about transactions of producers: begin, commit, abort, list, describe, abort by an operator.

Callers: ``application`` for the routes named in ``endpoints``. Any broker can answer these calls, because every
decision is a write to the coordination store. The coordinator of the group answers a commit with offsets of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.requests import decode_request
from fairlead_api.bodies.transactions import (
    AbortTransactionRequest,
    BeginRequest,
    CommitTransactionRequest,
    EndedTransactionAnswer,
    JointCommitAnswer,
    JointCommitRequest,
    NamedPartitions,
    OpenPartition,
    PartitionTransaction,
    PartitionTransactions,
    TopicPartitions,
    TransactionAnswer,
    TransactionDescription,
    TransactionOffsets,
    UnfinishedTransaction,
)
from fairlead_api.bodies.transactions import TransactionState as TransactionStateName
from fairlead_api.identifiers import ProducerEpoch, ProducerId, TopicId
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp
from fairlead_api.transaction_id import TransactionId, parse_transaction_id
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.registry.transaction_records import (
    EndReason,
    Outcome,
    PendingOffset,
    PendingOffsets,
    TransactionRecord,
)
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.refusals import partition_not_found
from fairlead_broker.runtime.transactions.transactions import HiddenProducer
from fairlead_broker.server.admin.groups import Answered, AtCoordinator, require_read
from fairlead_broker.server.http.call import Call, Endpoint, json_body
from fairlead_broker.server.http.paging import cursor_of, name_behind
from fairlead_broker.server.routing.decided_transactions import OUTCOME_NAMES, decided_transaction
from fairlead_broker.server.routing.forwarding import Forwarding
from fairlead_broker.server.routing.locate import checked_topic
from fairlead_broker.server.routing.transaction_access import authorize, check_level, is_seen
from fairlead_broker.transactions.decisions import Begin, Decide, Decided, Partitions, merged
from fairlead_broker.transactions.outcomes import TransactionState, state_of

_STATE_NAMES: Final[dict[TransactionState, TransactionStateName]] = {
    TransactionState.OPEN: "open",
    TransactionState.UNFINISHED: "unfinished",
    TransactionState.ENDED: "ended",
}


class TransactionCalls:
    """Endpoints of the calls about transactions."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding
        self._at_coordinator = AtCoordinator(broker, forwarding)

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {
            "begin_transaction": self.begin,
            "commit_transaction": self.commit,
            "commit_transactions": self.commit_together,
            "abort_transaction": self.abort,
            "list_transactions": self.list_all,
            "describe_transaction": self.describe,
            "delete_transaction": self.delete,
            "partition_transactions": self._forwarding.at_leader(self.of_partition, writing=False),
        }

    async def begin(self, call: Call) -> None:
        """``POST /v1/transactions``."""
        self._broker.admit()
        check_level(self._broker)
        request = decode_request(BeginRequest, await json_body(call) or b"{}")
        longest_ms = self._broker.configs.transaction_timeout_ms_max
        if request.timeout_ms > longest_ms:
            raise ProblemError(
                "invalid_transaction",
                f"timeout_ms {request.timeout_ms} is not allowed; allowed: up to {longest_ms}"
                " (transaction.max.timeout.ms)",
                data={"parameter": "timeout_ms"},
            )
        if request.name is not None:
            call.access.require(Operation.WRITE, Kind.PRODUCER, request.name)
        wanted = Begin(request.timeout_ms, request.name, request.above, call.access.owner)
        begun = await self._broker.transactions.begin(wanted, lambda record: authorize(call.access, record))
        await call.answer_json(
            TransactionAnswer(
                transaction=str(begun.transaction),
                producer_id=begun.transaction.producer_id,
                producer_epoch=begun.transaction.epoch,
                name=begun.record.name,
                timeout_ms=begun.record.timeout_ms,
                metadata=begun.record.metadata,
            ),
            201,
        )

    async def commit(self, call: Call) -> None:
        """``POST /v1/transactions/{transaction}:commit``."""
        transaction, body = transaction_in_path(call), await json_body(call) or b"{}"
        request = decode_request(CommitTransactionRequest, body)
        if request.offsets is None:
            await self._decide(call, transaction, self._commit(call, transaction, request))
        else:
            await self._at_coordinator.answer(call, request.offsets.group, self._commit_with_offsets, body)

    async def _commit_with_offsets(self, call: Call, body: bytes) -> Answered:
        """Commit a transaction with offsets of a group that this broker coordinates."""
        transaction = transaction_in_path(call)
        request = decode_request(CommitTransactionRequest, body)
        offsets = request.offsets
        assert offsets is not None, "only commits with offsets are answered by the coordinator of a group"
        producer_id = transaction.producer_id
        requests = {producer_id: self._commit(call, transaction, request)}
        decided = await self._write_with_offsets(call, requests, offsets)
        return Answered(decided_transaction(transaction, decided[producer_id]))

    def _commit(self, call: Call, transaction: TransactionId, request: CommitTransactionRequest) -> Decide:
        return Decide(
            transaction.epoch,
            Outcome.COMMIT,
            partitions=self._partitions(call, request.partitions),
            metadata=request.metadata,
            has_offsets=request.offsets is not None,
            offsets=None if request.offsets is None else pending_of(request.offsets),
        )

    async def commit_together(self, call: Call) -> None:
        """``POST /v1/transactions:commit``."""
        body = await json_body(call)
        request = decode_request(JointCommitRequest, body)
        if request.offsets is not None:
            await self._at_coordinator.answer(
                call, request.offsets.group, self._commit_together_with_offsets, body
            )
            return
        self._broker.admit()
        check_level(self._broker)
        decided = await self._broker.transactions.commit_together(
            self._joint(call, request), lambda record: authorize(call.access, record)
        )
        await call.answer_json(_joint_answer(request, decided))

    async def _commit_together_with_offsets(self, call: Call, body: bytes) -> Answered:
        """Commit transactions of several producers with offsets of a group that this broker coordinates."""
        request = decode_request(JointCommitRequest, body)
        assert request.offsets is not None, (
            "only commits with offsets are answered by the coordinator of a group"
        )
        decided = await self._write_with_offsets(call, self._joint(call, request), request.offsets)
        return Answered(_joint_answer(request, decided))

    async def _write_with_offsets(
        self, call: Call, requests: Mapping[ProducerId, Decide], offsets: TransactionOffsets
    ) -> dict[ProducerId, Decided]:
        self._broker.admit()
        check_level(self._broker)
        call.access.require(Operation.READ, Kind.GROUP, offsets.group)
        require_read(call, (each.topic for each in offsets.offsets))
        return await self._broker.transactions.commit_with(
            requests,
            lambda record: authorize(call.access, record),
            lambda decision: self._broker.groups.decide(offsets.group, offsets, decision, call.access.owner),
        )

    def _joint(self, call: Call, request: JointCommitRequest) -> dict[ProducerId, Decide]:
        transactions = [(parse_transaction_id(each.transaction), each) for each in request.transactions]
        return {
            transaction.producer_id: Decide(
                transaction.epoch,
                Outcome.COMMIT,
                partitions=self._partitions(call, each.partitions),
                metadata=each.metadata,
                has_offsets=request.offsets is not None,
            )
            for transaction, each in transactions
        }

    async def abort(self, call: Call) -> None:
        """``POST /v1/transactions/{name or transaction}:abort``."""
        # The body is only checked, because every live broker gets a hint to check the transaction.
        decode_request(AbortTransactionRequest, await json_body(call) or b"{}")
        text = call.parameters["transaction"]
        transaction, reason = _transaction_or_none(text), EndReason.CLIENT
        if transaction is None:
            # A client aborts its transaction by id; an operator aborts a producer's transaction by the producer's name.
            (transaction, record), reason = await self._find(call), EndReason.OPERATOR
            _require(call, record, Operation.WRITE)
        await self._decide(call, transaction, Decide(transaction.epoch, Outcome.ABORT, reason))

    async def list_all(self, call: Call) -> None:
        """``GET /v1/transactions``."""
        query = call.query
        limit, after = query.integer("limit"), query.text_or_none("after")
        state, begin = query.text("state"), query.text_or_none("name") or ""
        behind = None if after is None else _behind(after)
        found, more = await self._broker.transactions.page(behind, limit)
        chosen = [
            (producer_id, record)
            for producer_id, record in found
            if (record.name or "").startswith(begin)
            and (state != "unfinished" or record.unfinished)
            and is_seen(call.access, record)
        ]
        if state == "open":
            opened = await self._broker.transactions.opened([producer_id for producer_id, _ in chosen])
            chosen = [each for each in chosen if each[0] in opened]
        items = [
            self._description(call.access, TransactionId(producer_id, record.epoch), record)
            for producer_id, record in chosen
        ]
        following = cursor_of(str(found[-1][0])) if more and found else None
        await call.answer_json(Page(items=items, next=following))

    async def describe(self, call: Call) -> None:
        """``GET /v1/transactions/{name or transaction}``."""
        transaction, record = await self._find(call)
        producer_id = transaction.producer_id
        if not is_seen(call.access, record):
            raise _not_found(call.parameters["transaction"])
        open_at, silent = await self._broker.transactions.open_at(producer_id)
        await call.answer_json(
            msgspec.structs.replace(
                self._description(call.access, transaction, record),
                open_at=[
                    OpenPartition(
                        transaction=str(TransactionId(producer_id, each.epoch)),
                        topic=topic,
                        partition=each.partition,
                        first_offset=each.first_offset,
                        age_seconds=round(each.age_seconds, 3),
                        leader=leader,
                    )
                    for leader, each in open_at
                    if _is_shown(call.access, topic := self._broker.metadata.topic_name(each.topic_id))
                ],
                silent_brokers=list(silent),
            )
        )

    async def delete(self, call: Call) -> None:
        """``DELETE /v1/transactions/{name or transaction}``."""
        transaction, record = await self._find(call)
        _require(call, record, Operation.DELETE)
        await self._broker.transactions.forget(transaction.producer_id)
        await call.answer(HTTPStatus.NO_CONTENT, [])

    async def of_partition(self, call: Call, replica: LeaderReplica) -> None:
        """``GET /v1/topics/{topic}/partitions/{partition}/transactions``."""
        looks = self._broker.transactions.looks
        opened = list(replica.open_transactions())
        timeouts = await self._broker.transactions.timeouts_ms({producer_id for producer_id, _, _ in opened})
        await call.answer_json(
            PartitionTransactions(
                last_stable_offset=replica.last_stable_offset,
                high_watermark=replica.high_watermark,
                items=[
                    PartitionTransaction(
                        transaction=str(TransactionId(producer_id, epoch)),
                        first_offset=first_offset,
                        age_seconds=round(looks.age_seconds(replica, producer_id, epoch, first_offset), 3),
                        timeout_ms=timeouts.get(producer_id),
                    )
                    for producer_id, epoch, first_offset in opened
                ],
            )
        )

    async def _decide(self, call: Call, transaction: TransactionId, request: Decide) -> None:
        self._broker.admit()
        check_level(self._broker)
        decided = await self._broker.transactions.decide(
            transaction.producer_id, request, lambda record: authorize(call.access, record)
        )
        await call.answer_json(decided_transaction(transaction, decided))

    def _partitions(self, call: Call, named: Sequence[TopicPartitions]) -> Partitions:
        """Return the partitions of a commit. Raises the problem of a partition that is missing or not writable."""
        found: dict[TopicId, tuple[int, ...]] = {}
        views = self._broker.views
        for each in named:
            expected = None if each.topic_id is None else TopicId(each.topic_id)
            if each.topic is not None:
                topic = checked_topic(views.by_name(each.topic), expected)
            else:
                assert expected is not None, "an entry has a topic or an id"
                topic = views.by_id(expected)
            call.access.require(Operation.WRITE, Kind.TOPIC, topic.name)
            for partition in each.partitions:
                if partition >= topic.partition_count:
                    raise partition_not_found(topic.name, partition, topic.partition_count)
            found = merged(found, {topic.topic_id: each.partitions})
        return found

    async def _find(self, call: Call) -> tuple[TransactionId, TransactionRecord]:
        """Return the transaction in the path, or the newest transaction of the named producer, with the record.

        Raises `transaction_not_found`.
        """
        self._broker.admit()
        text = call.parameters["transaction"]
        transactions = self._broker.transactions
        producer_id: ProducerId | None
        epoch: ProducerEpoch | None = None
        if (transaction := _transaction_or_none(text)) is not None:
            producer_id, epoch = transaction
        else:
            producer_id = await transactions.find(text)
        record = None if producer_id is None else await transactions.standing(producer_id)
        if producer_id is None or record is None or (epoch is not None and epoch > record.epoch):
            raise _not_found(text)
        return TransactionId(producer_id, record.epoch if epoch is None else epoch), record

    def _description(
        self, access: CallerAccess, transaction: TransactionId, record: TransactionRecord
    ) -> TransactionDescription:
        """Return the description of a transaction without the topics that the caller is not allowed to describe."""
        ended, producer_id = record.ended, transaction.producer_id
        return TransactionDescription(
            transaction=str(transaction),
            name=record.name,
            state=_STATE_NAMES[state_of(record, transaction.epoch)],
            timeout_ms=record.timeout_ms,
            ended=None
            if ended is None
            else EndedTransactionAnswer(
                transaction=str(TransactionId(producer_id, ended.epoch)),
                state=OUTCOME_NAMES[ended.outcome],
                reason=ended.reason.value,
                at=format_timestamp(ended.at_us),
            ),
            named=self._named(access, record.named),
            unfinished=[
                UnfinishedTransaction(
                    transaction=str(TransactionId(producer_id, ProducerEpoch(commit.epoch))),
                    partitions=self._named(access, commit.partitions),
                )
                for commit in record.unfinished
            ],
            metadata=record.metadata,
            owner=record.owner,
        )

    def _named(self, access: CallerAccess, partitions: Partitions) -> list[NamedPartitions]:
        return [
            NamedPartitions(topic=topic, topic_id=topic_id, partitions=list(numbers))
            for topic_id, numbers in partitions.items()
            if _is_shown(access, topic := self._broker.metadata.topic_name(topic_id))
        ]


def transaction_in_path(call: Call) -> TransactionId:
    """Return the transaction in the path. Raises `malformed_request`."""
    return parse_transaction_id(call.parameters["transaction"])


def pending_of(offsets: TransactionOffsets) -> PendingOffsets:
    """Return the offsets of a commit in the form in which the record of a Kafka client's transaction keeps them."""
    return PendingOffsets(
        group=offsets.group,
        member_id=offsets.member_id,
        member_epoch=offsets.member_epoch,
        offsets=tuple(
            PendingOffset(
                topic=each.topic,
                topic_id=TopicId(each.topic_id or ""),
                partition=each.partition,
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
            )
            for each in offsets.offsets
        ),
    )


def _transaction_or_none(text: str) -> TransactionId | None:
    """Return the transaction with an id such as `17.4`; None if the text is the name of a producer."""
    try:
        return parse_transaction_id(text)
    except ProblemError:
        return None


def _is_shown(access: CallerAccess, topic: str | None) -> bool:
    """Return whether an answer shows a topic to the caller; a deleted topic has no name that must be hidden."""
    return topic is None or access.sees(Kind.TOPIC, topic)


def _require(call: Call, record: TransactionRecord, operation: Operation) -> None:
    """Raise `forbidden`, or `transaction_not_found` for a producer that the caller may not describe, unless allowed."""
    try:
        authorize(call.access, record, operation)
    except HiddenProducer:
        raise _not_found(call.parameters["transaction"]) from None


def _joint_answer(request: JointCommitRequest, decided: Mapping[ProducerId, Decided]) -> JointCommitAnswer:
    transactions = [parse_transaction_id(each.transaction) for each in request.transactions]
    return JointCommitAnswer(
        transactions=[decided_transaction(each, decided[each.producer_id]) for each in transactions]
    )


def _behind(cursor: str) -> ProducerId:
    text = name_behind(cursor)
    if not text.isdecimal():
        raise ProblemError("malformed_request", "after is not a cursor of this list")
    return ProducerId(int(text))


def _not_found(text: str) -> ProblemError:
    return ProblemError(
        "transaction_not_found",
        f"no transaction matches the producer name or id {text}",
        data={"transaction": text},
    )
