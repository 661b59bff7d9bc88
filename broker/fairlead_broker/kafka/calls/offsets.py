"""ListOffsets: the start and the end of logs, and the first offset at or after a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead_api.access_needs import Operation
from fairlead_api.identifiers import LeaderEpoch, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import RefusedError, TopicFinder
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import ListOffsetsResponse, OffsetForLeaderEpochResponse
from fairlead_broker.runtime import Broker, TopicView
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.peer_serving.positions import Position, look_up
from fairlead_broker.runtime.refusals import wrong_leader_epoch

LATEST: Final = -1
EARLIEST: Final = -2
NEWEST_TIME: Final = -3
EARLIEST_LOCAL: Final = -4
READ_COMMITTED: Final = 1


class OffsetCalls:
    """Calls about offsets of partitions."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.ends_of_epochs,
        }

    async def list_offsets(self, call: KafkaCall) -> Reply:
        """Return one offset for each partition."""
        finder = TopicFinder(self._broker, call, Operation.DESCRIBE)
        topics = []
        for topic in call.request.topics:
            view, error = None, KafkaError.NONE
            try:
                view = finder.find(topic.name, None)
            except RefusedError as refused:
                error = refused.error
            partitions = [await self._listed(call, view, error, wanted) for wanted in topic.partitions]
            topics.append(
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    version=call.version, name=topic.name, partitions=partitions
                )
            )
        return Reply(ListOffsetsResponse(version=call.version, topics=topics))

    async def _listed(self, call: KafkaCall, view: TopicView | None, error: KafkaError, wanted: Any) -> Any:
        response = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
            version=call.version,
            partition_index=wanted.partition_index,
            error_code=error,
            timestamp=-1,
            offset=-1,
            leader_epoch=-1,
        )
        if view is None:
            return response
        try:
            replica = self._broker.replicas.find(view.topic_id, PartitionIndex(wanted.partition_index))
            _check_epoch(replica, wanted.current_leader_epoch)
            await self._look_up(call, replica, wanted.timestamp, response)
        except ProblemError as problem:
            response.error_code = error_of(problem, Family.DATA)
        return response

    async def _look_up(self, call: KafkaCall, replica: LeaderReplica, timestamp: int, response: Any) -> None:
        """Set the offset at a time in milliseconds, or at a position that is written as a negative time."""
        committed = call.version >= 2 and call.request.isolation_level == READ_COMMITTED
        position: Position
        if timestamp == LATEST:
            position = "latest"
        elif timestamp in (EARLIEST, EARLIEST_LOCAL):
            position = "earliest"
        elif timestamp >= 0:
            position = timestamp * 1000
        elif timestamp == NEWEST_TIME:
            position = "newest"
        else:
            return
        offset, time_us = await look_up(replica, position, self._broker.disk, committed=committed)
        if offset is not None:
            response.offset = offset
            response.leader_epoch = replica.leader_epoch
            if time_us is not None:
                response.timestamp = time_us // 1000

    # -- leader epochs

    async def ends_of_epochs(self, call: KafkaCall) -> Reply:
        """Return the end of the highest epoch up to the requested epoch of each partition."""
        finder = TopicFinder(self._broker, call, Operation.DESCRIBE)
        kind = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        is_replica = call.version >= 3 and call.request.replica_id >= 0
        topics = []
        for topic in call.request.topics:
            view, error = None, KafkaError.INVALID_REQUEST if is_replica else KafkaError.NONE
            try:
                if not is_replica:
                    view = finder.find(topic.topic, None)
            except RefusedError as refused:
                error = refused.error
            partitions = [self._end_of_epoch(call, view, error, wanted) for wanted in topic.partitions]
            topics.append(kind(version=call.version, topic=topic.topic, partitions=partitions))
        return Reply(OffsetForLeaderEpochResponse(version=call.version, topics=topics))

    def _end_of_epoch(self, call: KafkaCall, view: TopicView | None, error: KafkaError, wanted: Any) -> Any:
        response = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset(
            version=call.version,
            error_code=error,
            partition=wanted.partition,
            leader_epoch=-1,
            end_offset=-1,
        )
        if view is None:
            return response
        try:
            replica = self._broker.replicas.find(view.topic_id, PartitionIndex(wanted.partition))
            _check_epoch(replica, wanted.current_leader_epoch)
            epoch, offset = _end_of(replica, wanted.leader_epoch)
        except ProblemError as problem:
            response.error_code = error_of(problem, Family.DATA)
            return response
        response.leader_epoch, response.end_offset = epoch, offset
        return response


def _end_of(replica: LeaderReplica, wanted: int) -> tuple[int, int]:
    """Return the highest epoch up to the wanted epoch, and its end offset; -1 for both above the leader's epoch."""
    if wanted > replica.leader_epoch:
        return -1, -1
    if wanted < replica.leader_epoch:
        end = replica.log.end_offset_for_epoch(LeaderEpoch(wanted))
        if end is not None:
            return end.epoch, end.end_offset
    # The log does not list an epoch without records, and no record has a higher epoch.
    return wanted, replica.log_end_offset


def _check_epoch(replica: LeaderReplica, wanted: int) -> None:
    """Raise the problem for a request with another leader epoch; -1 stands for any epoch."""
    if wanted not in (-1, replica.leader_epoch):
        raise wrong_leader_epoch(replica.topic, replica.index, LeaderEpoch(wanted), replica.leader_epoch)
