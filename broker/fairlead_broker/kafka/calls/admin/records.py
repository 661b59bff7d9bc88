"""Logs of partitions: DeleteRecords, DescribeProducers, WriteTxnMarkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.identifiers import Offset, PartitionIndex, ProducerEpoch, ProducerId
from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.kafka.calls.admin.changes import Change, Changed, Changes
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.repetitions import merged
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.calls.transaction_sessions import transaction_error
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import (
    DeleteRecordsResponse,
    DescribeProducersResponse,
    WriteTxnMarkersResponse,
)
from fairlead_broker.producers import ProducerEntry
from fairlead_broker.registry.transaction_records import EndReason, Outcome
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.transactions.decisions import Decide

HIGH_WATERMARK: Final = -1
"""Offset that stands for the deletion of all committed records."""
NO_EPOCH: Final = -1


class RecordCalls:
    """Administration calls that leaders answer."""

    def __init__(self, broker: Broker, changes: Changes) -> None:
        self._broker = broker
        self._changes = changes

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.DELETE_RECORDS: self.delete_records,
            ApiKey.DESCRIBE_PRODUCERS: self.describe_producers,
            ApiKey.WRITE_TXN_MARKERS: self.write_markers,
        }

    async def delete_records(self, call: KafkaCall) -> Reply:
        """Delete the records below an offset of each partition."""
        version, kind = call.version, DeleteRecordsResponse.DeleteRecordsTopicResult
        topics = []
        for topic in call.request.topics:
            partitions = []
            for wanted in topic.partitions:
                result = kind.DeleteRecordsPartitionResult(
                    version=version,
                    partition_index=wanted.partition_index,
                    low_watermark=-1,
                    error_code=KafkaError.NONE,
                )
                try:
                    result.low_watermark = await self._deleted(call, topic.name, wanted)
                except ProblemError as problem:
                    result.error_code = error_of(problem, Family.DATA)
                partitions.append(result)
            topics.append(kind(version=version, name=topic.name, partitions=partitions))
        return Reply(DeleteRecordsResponse(version=version, topics=topics))

    async def _deleted(self, call: KafkaCall, topic: str, wanted: Any) -> Offset:
        """Delete records of one partition; return its new log start."""
        call.access.require(Operation.DELETE, Kind.TOPIC, topic)
        replica = self._leader(topic, wanted.partition_index)
        low_watermark = replica.log_start_offset

        async def run() -> Changed:
            nonlocal low_watermark
            offset = None if wanted.offset == HIGH_WATERMARK else Offset(wanted.offset)
            if offset is not None and offset < 0:
                raise ProblemError(
                    "offset_out_of_range", f"offset {offset} of {topic}-{replica.index} is negative"
                )
            low_watermark = await self._broker.delete_records(replica, offset)
            return Changed(audited={"offset": wanted.offset})

        names = {"topic": topic, "partition": str(wanted.partition_index)}
        await self._changes.make_here(call, Change("delete_records", names, run))
        return low_watermark

    async def describe_producers(self, call: KafkaCall) -> Reply:
        """Return the idempotent producers remembered by the leader of each partition."""
        version, kind = call.version, DescribeProducersResponse.TopicResponse
        topics = []
        named = merged(call.request.topics, lambda each: each.name, lambda each: each.partition_indexes)
        for topic, indexes in named:
            partitions = []
            for index in indexes:
                result = kind.PartitionResponse(
                    version=version,
                    partition_index=index,
                    error_code=KafkaError.NONE,
                    active_producers=[],
                )
                try:
                    call.access.require(Operation.READ, Kind.TOPIC, topic.name)
                    replica = self._leader(topic.name, index)
                    result.active_producers = _producers(
                        version, replica, await self._broker.disk.submit(replica.log.remembered_producers)
                    )
                except ProblemError as problem:
                    result.error_code, result.error_message = error_of(problem, Family.DATA), problem.detail
                partitions.append(result)
            topics.append(kind(version=version, name=topic.name, partitions=partitions))
        return Reply(DescribeProducersResponse(version=version, topics=topics))

    async def write_markers(self, call: KafkaCall) -> Reply:
        """Abort the transactions whose markers an operator asks the leaders of their partitions to write."""
        version, kind = call.version, WriteTxnMarkersResponse.WritableTxnMarkerResult
        markers = []
        for marker in call.request.markers:
            topics = [
                kind.WritableTxnMarkerTopicResult(
                    version=version,
                    name=topic.name,
                    partitions=[
                        kind.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult(
                            version=version,
                            partition_index=index,
                            error_code=await self._aborted(call, marker, topic.name, index),
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ]
            markers.append(kind(version=version, producer_id=marker.producer_id, topics=topics))
        return Reply(WriteTxnMarkersResponse(version=version, markers=markers))

    async def _aborted(self, call: KafkaCall, marker: Any, topic: str, index: int) -> KafkaError:
        """Abort the transaction of a marker in all its partitions; return the error for the named partition."""
        if marker.transaction_result:
            # The decision to commit belongs to the producer, which knows all partitions of its transaction.
            return KafkaError.INVALID_REQUEST
        transaction = TransactionId(ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch))

        async def run() -> Changed:
            self._broker.admit()
            request = Decide(transaction.epoch, Outcome.ABORT, EndReason.OPERATOR)
            await self._broker.transactions.decide(transaction.producer_id, request, lambda record: None)
            return Changed()

        try:
            call.access.require(Operation.ALTER, Kind.CLUSTER, SINGLE_NAME)
        except ProblemError as problem:
            return error_of(problem, Family.ADMIN)
        try:
            self._leader(topic, index)
        except ProblemError as problem:
            return error_of(problem, Family.DATA)
        try:
            await self._changes.make_here(
                call, Change("abort_transaction", {"transaction": str(transaction)}, run)
            )
        except ProblemError as problem:
            return transaction_error(problem, knows_fenced=False)
        return KafkaError.NONE

    def _leader(self, topic: str, index: int) -> LeaderReplica:
        view = self._broker.views.by_name(topic)
        return self._broker.replicas.find(view.topic_id, PartitionIndex(index))


def _producers(
    version: int, replica: LeaderReplica, remembered: list[tuple[ProducerId, ProducerEntry]]
) -> list[Any]:
    kind = DescribeProducersResponse.TopicResponse.PartitionResponse.ProducerState
    begun = {producer: offset for producer, _, offset in replica.open_transactions()}
    return [
        kind(
            version=version,
            producer_id=producer,
            producer_epoch=each.epoch,
            last_sequence=each.batches[-1].last_sequence if each.batches else -1,
            last_timestamp=each.partition_time_us // 1000,
            coordinator_epoch=NO_EPOCH,
            current_txn_start_offset=begun.get(producer, -1),
        )
        for producer, each in remembered
    ]
