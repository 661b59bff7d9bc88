"""Produce: one Kafka batch for each partition, translated to one batch of Fairlead and stored by the runtime.

The batches of one connection are queued at their partitions in the order of their requests, regardless of how long each
batch takes to translate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fairlead_api.access_needs import Operation
from fairlead_api.batch.header import read_header
from fairlead_api.configuration import TimestampType
from fairlead_api.identifiers import Acks, BrokerId, PartitionIndex, ProducerEpoch, TopicId
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.kafka.batches import (
    BatchRefusal,
    KafkaProducer,
    from_kafka,
    is_costly,
    transactional_producer,
)
from fairlead_broker.kafka.calls.call import CloseConnection, KafkaCall
from fairlead_broker.kafka.calls.places import (
    NO_ID,
    RefusedError,
    TopicFinder,
    kafka_brokers,
    leader_of,
    node_endpoints,
)
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.calls.transaction_sessions import (
    StatedProducer,
    TransactionSessions,
    transaction_error,
)
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import ProduceResponse
from fairlead_broker.runtime import AppendResult, Broker, ProduceItem, TopicView
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.transactions.kafka_sessions import with_partitions

BY_ID_SINCE: Final = 13
"""First version that names topics by id."""
SECOND_VERSION_SINCE: Final = 12
"""First version whose clients use the second version of Kafka's transactions, in which batches name partitions."""
ENDPOINTS_SINCE: Final = 10
"""First version in which a refusal names the current leader."""
SEQUENCES: Final = 2**31
"""Number of different sequence numbers; the last is followed by 0."""
_PRODUCE_ERRORS: Final = {
    KafkaError.COORDINATOR_NOT_AVAILABLE: KafkaError.NOT_LEADER_OR_FOLLOWER,
    KafkaError.NOT_COORDINATOR: KafkaError.NOT_LEADER_OR_FOLLOWER,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: KafkaError.REQUEST_TIMED_OUT,
}
"""Errors of transactions that producers do not expect, with errors that they retry."""
_ACKS: Final = {-1: Acks.ALL, 1: Acks.LEADER, 0: Acks.NONE}


@dataclass(slots=True)
class _Part:
    """Batch of one partition, with its result."""

    index: int
    records: Any
    view: TopicView | None = None
    replica: LeaderReplica | None = None
    item: ProduceItem | None = None
    result: AppendResult | None = None
    error: KafkaError = KafkaError.NONE
    detail: str | None = None
    epoch: ProducerEpoch | None = None
    """Epoch of the batch's transaction, which replaces the epoch that the client states."""
    session: ProducerEpoch | None = None
    """First epoch of the session of a client whose sequences continue from one transaction to the next; else None."""

    def refuse(self, error: KafkaError, detail: str | None = None) -> None:
        self.error = error
        self.detail = detail


class ProduceCalls:
    """Calls that append records."""

    def __init__(self, broker: Broker, sessions: TransactionSessions) -> None:
        self._broker = broker
        self._sessions = sessions
        self._decompressed_bytes_max = broker.settings.limits.decompressed_bytes_max
        self._seconds = broker.telemetry.metric("fairlead_kafka_translation_seconds").labels("in")

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {ApiKey.PRODUCE: self.produce}

    async def produce(self, call: KafkaCall) -> Reply | None:
        """Store one batch for each partition; without acks, there is no response."""
        acks = _ACKS.get(call.request.acks)
        topics = [
            (topic, [_Part(each.index, each.records) for each in topic.partition_data])
            for topic in call.request.topic_data
        ]
        if acks is None:
            for _, parts in topics:
                for part in parts:
                    part.refuse(KafkaError.INVALID_REQUIRED_ACKS)
        else:
            await self._store(call, topics, acks)
        if acks is Acks.NONE:
            if any(part.error for _, parts in topics for part in parts):
                # Closing the connection is the only way to notify the producer, which then fetches metadata.
                message = "a batch without acknowledgement was refused"
                raise CloseConnection(message)
            return None
        errors = (part.error for _, parts in topics for part in parts if part.error)
        return Reply(self._response(call, topics), error=next(errors, KafkaError.NONE))

    async def _store(self, call: KafkaCall, topics: list[tuple[Any, list[_Part]]], acks: Acks) -> None:
        turn = call.client.produce_turn
        await turn.acquire()
        held = True

        def queued() -> None:
            nonlocal held
            if held:
                held = False
                turn.release()

        parts: list[_Part] = []
        try:
            finder = TopicFinder(self._broker, call, Operation.WRITE)
            for topic, each in topics:
                self._find(call, finder, topic, each)
                parts += [part for part in each if part.view is not None]
            await self._join_transactions(call, parts, acks)
            for part in parts:
                if not part.error:
                    await self._translate(part)
            parts = [part for part in parts if part.item is not None]
            if not parts:
                return
            items = [part.item for part in parts if part.item is not None]
            left = await self._room(items, max(0, call.request.timeout_ms) / 1000)
            outcomes = await self._broker.producing.produce(
                items, acks=acks, timeout_seconds=left, queued=queued
            )
            for part, outcome in zip(parts, outcomes, strict=True):
                if isinstance(outcome, AppendResult):
                    part.result = outcome
                else:
                    _refuse(part, outcome)
        except ProblemError as problem:
            for part in parts:
                _refuse(part, problem)
        finally:
            queued()

    async def _room(self, items: list[ProduceItem], seconds: float) -> float:
        """Wait until the broker has room for batches; return the remaining time.

        Raises `ack_timeout` when the time has passed. An overload must not be reported as an error, because producers
        count their retries.
        """
        budget, clock = self._broker.produce_budget, self._broker.clock
        nbytes = sum(len(item.batch) for item in items)
        if budget.has_room(nbytes):
            return seconds
        end = clock.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                await budget.wait_for_room(nbytes)
        except TimeoutError as timeout:
            detail = f"{nbytes} bytes found no room within {seconds:.1f} s"
            raise ProblemError("ack_timeout", detail, side_effect=SideEffect.NONE) from timeout
        return max(0.0, end - clock.monotonic())

    def _find(self, call: KafkaCall, finder: TopicFinder, topic: Any, parts: list[_Part]) -> None:
        by_id = call.version >= BY_ID_SINCE
        try:
            view = finder.find(None if by_id else topic.name, topic.topic_id if by_id else None)
        except RefusedError as refused:
            for part in parts:
                part.refuse(refused.error, refused.detail)
            return
        for part in parts:
            part.view = view

    async def _join_transactions(self, call: KafkaCall, parts: list[_Part], acks: Acks) -> None:
        """Find the transactions of transactional batches, or refuse the batches."""
        by_producer: dict[KafkaProducer, list[_Part]] = {}
        for part in parts:
            producer = None if part.records is None else transactional_producer(part.records)
            if producer is not None:
                by_producer.setdefault(producer, []).append(part)
        for producer, joined in by_producer.items():
            name = call.request.transactional_id
            if not name or acks is not Acks.ALL:
                error = KafkaError.INVALID_TXN_STATE if not name else KafkaError.INVALID_REQUIRED_ACKS
                for part in joined:
                    part.refuse(error, "a batch of a transaction needs a transactional id and acks=all")
                continue
            is_second = call.version >= SECOND_VERSION_SINCE
            stated = StatedProducer(name, producer.id, producer.epoch, is_second)
            try:
                await (self._name if is_second else self._find_open)(call, stated, joined)
            except ProblemError as problem:
                error = transaction_error(problem, knows_fenced=False)
                for part in joined:
                    part.refuse(_PRODUCE_ERRORS.get(error, error), problem.detail)

    async def _name(self, call: KafkaCall, stated: StatedProducer, parts: list[_Part]) -> None:
        """Add the partitions of batches to the transaction, unless the transaction is open in the partitions."""
        added: dict[TopicId, list[int]] = {}
        for part in parts:
            assert part.view is not None, "the topic was found"
            index = PartitionIndex(part.index)
            replica = self._broker.replicas.find(part.view.topic_id, index)
            if replica.open_epoch(stated.producer_id) != stated.epoch:
                added.setdefault(part.view.topic_id, []).append(index)
        if added:
            await self._sessions.change(call, stated, lambda record: with_partitions(record, added))
        else:
            self._sessions.check(call, stated.name)

    async def _find_open(self, call: KafkaCall, stated: StatedProducer, parts: list[_Part]) -> None:
        """Set the epoch of the open transaction of a client that states one epoch for all its transactions.

        The record is read for each request: a leader may not have heard yet that the previous transaction has ended.
        """
        record = await self._sessions.opened(call, stated)
        for part in parts:
            assert part.view is not None, "the topic was found"
            if part.index not in record.named.get(part.view.topic_id, ()):
                part.refuse(KafkaError.INVALID_TXN_STATE, "the partition is not in the transaction")
            part.epoch, part.session = record.epoch, stated.epoch

    async def _translate(self, part: _Part) -> None:
        """Set the batch of a partition in the form that the runtime stores, or the refusal of the batch."""
        view = part.view
        assert view is not None, "the topic was found"
        try:
            part.replica = replica = self._broker.replicas.find(view.topic_id, PartitionIndex(part.index))
            now_us = self._broker.clock.now_us()
            if part.records is None:
                raise BatchRefusal(
                    KafkaError.INVALID_RECORD.name, "the request has no batch for the partition"
                )
            if is_costly(part.records):
                batch = await self._broker.validation.submit(
                    self._translated, part.records, now_us, part.epoch
                )
            else:
                batch = self._translated(part.records, now_us, part.epoch)
            part.item = ProduceItem(replica, memoryview(batch), session=part.session)
        except ProblemError as problem:
            _refuse(part, problem)
        except BatchRefusal as refusal:
            part.refuse(KafkaError[refusal.error], refusal.detail)

    def _translated(self, records: Any, now_us: int, epoch: ProducerEpoch | None) -> bytes | bytearray:
        began = self._broker.clock.monotonic()
        batch = from_kafka(records, self._decompressed_bytes_max, now_us, epoch)
        self._seconds.observe(self._broker.clock.monotonic() - began)
        return batch

    def _response(self, call: KafkaCall, topics: list[tuple[Any, list[_Part]]]) -> Any:
        version = call.version
        leaders: set[int] = set()
        responses = [
            ProduceResponse.TopicProduceResponse(
                version=version,
                name=topic.name if version < BY_ID_SINCE else "",
                topic_id=topic.topic_id if version >= BY_ID_SINCE else NO_ID,
                partition_responses=[self._partition(version, part, leaders) for part in parts],
            )
            for topic, parts in topics
        ]
        response = ProduceResponse(version=version, responses=responses)
        if leaders and version >= ENDPOINTS_SINCE:
            response.node_endpoints = [
                ProduceResponse.NodeEndpoint(version=version, **fields)
                for fields in node_endpoints(kafka_brokers(self._broker), leaders)
            ]
        return response

    def _partition(self, version: int, part: _Part, leaders: set[int]) -> Any:
        response = ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
            version=version,
            index=part.index,
            error_code=part.error,
            base_offset=-1,
            error_message=part.detail,
        )
        view, result = part.view, part.result
        if part.replica is not None:
            # A refusal has the log start too: after UNKNOWN_PRODUCER_ID, producers restart their sequences only if
            # they learn that their last records were deleted.
            response.log_start_offset = part.replica.log_start_offset
        if result is not None and view is not None:
            response.base_offset = result.base_offset
            if view.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
                response.log_append_time_ms = result.log_append_time_us // 1000
        elif (
            part.error is KafkaError.NOT_LEADER_OR_FOLLOWER
            and view is not None
            and version >= ENDPOINTS_SINCE
        ):
            leader, epoch = leader_of(view, part.index)
            if leader >= 0:
                leaders.add(BrokerId(leader))
                response.current_leader = (
                    ProduceResponse.TopicProduceResponse.PartitionProduceResponse.LeaderIdAndEpoch(
                        version=version, leader_id=leader, leader_epoch=epoch
                    )
                )
        return response


def _refuse(part: _Part, problem: ProblemError) -> None:
    """Set the runtime's refusal of a batch."""
    error = error_of(problem, Family.DATA)
    if error is KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER and part.item is not None:
        behind = (int(str(problem.data["expected"])) - read_header(part.item.batch).base_sequence) % SEQUENCES
        if 0 < behind < SEQUENCES // 2:
            # So many batches were stored after this batch that its offset is no longer known.
            error = KafkaError.DUPLICATE_SEQUENCE_NUMBER
    part.refuse(error, problem.detail)
