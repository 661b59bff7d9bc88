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
from fairlead_api.identifiers import Acks, BrokerId, PartitionIndex
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.kafka.batches import BatchRefusal, from_kafka, is_costly
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
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import ProduceResponse
from fairlead_broker.runtime import AppendResult, Broker, ProduceItem, TopicView

BY_ID_SINCE: Final = 13
"""First version that names topics by id."""
ENDPOINTS_SINCE: Final = 10
"""First version in which a refusal names the current leader."""
SEQUENCES: Final = 2**31
"""Number of different sequence numbers; the last is followed by 0."""
_ACKS: Final = {-1: Acks.ALL, 1: Acks.LEADER, 0: Acks.NONE}


@dataclass(slots=True)
class _Part:
    """Batch of one partition, with its result."""

    index: int
    records: Any
    view: TopicView | None = None
    item: ProduceItem | None = None
    result: AppendResult | None = None
    error: KafkaError = KafkaError.NONE
    detail: str | None = None

    def refuse(self, error: KafkaError, detail: str | None = None) -> None:
        self.error = error
        self.detail = detail


class ProduceCalls:
    """Calls that append records."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
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
            for part in parts:
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

    async def _translate(self, part: _Part) -> None:
        """Set the batch of a partition in the form that the runtime stores, or the refusal of the batch."""
        view = part.view
        assert view is not None, "the topic was found"
        try:
            replica = self._broker.replicas.find(view.topic_id, PartitionIndex(part.index))
            now_us = self._broker.clock.now_us()
            if part.records is None:
                raise BatchRefusal(
                    KafkaError.INVALID_RECORD.name, "the request has no batch for the partition"
                )
            if is_costly(part.records):
                batch = await self._broker.validation.submit(self._translated, part.records, now_us)
            else:
                batch = self._translated(part.records, now_us)
            if read_header(batch).is_transactional:
                part.refuse(KafkaError.INVALID_TXN_STATE, "transactions are not supported")
                return
            part.item = ProduceItem(replica, memoryview(batch))
        except ProblemError as problem:
            _refuse(part, problem)
        except BatchRefusal as refusal:
            part.refuse(KafkaError[refusal.error], refusal.detail)

    def _translated(self, records: Any, now_us: int) -> bytes | bytearray:
        began = self._broker.clock.monotonic()
        batch = from_kafka(records, self._decompressed_bytes_max, now_us)
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
        if part.item is not None and result is not None and view is not None:
            response.base_offset = result.base_offset
            response.log_start_offset = part.item.partition.log_start_offset
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
