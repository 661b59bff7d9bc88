"""Metadata: brokers with a Kafka address, and topics with the leaders of their partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import PartitionIndex, TopicId, is_name
from fairlead_api.patterns import HIDDEN
from fairlead_api.problems import ProblemError
from fairlead_broker.controller.election import in_sync_brokers
from fairlead_broker.kafka.calls.admin.changes import Change, Changed, Changes
from fairlead_broker.kafka.calls.authorized_operations import authorized_operations
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import NO_ID, kafka_brokers, offline_replicas
from fairlead_broker.kafka.calls.repetitions import counted
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import DescribeTopicPartitionsResponse, MetadataResponse
from fairlead_broker.runtime import Broker, TopicView

DESCRIBED_MAX: Final = 2_000
"""Maximum number of partitions in an answer to DescribeTopicPartitions; a cursor continues after them."""


class MetadataCalls:
    """Calls about brokers and topics, which every client makes first."""

    def __init__(self, broker: Broker, changes: Changes) -> None:
        self._broker = broker
        self._changes = changes

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe_partitions,
        }

    async def metadata(self, call: KafkaCall) -> Reply:
        """Return all topics that the caller may describe, or the requested topics."""
        version, broker = call.version, self._broker
        wanted = call.request.topics
        if wanted is None or (version == 0 and not wanted):
            topics = [
                self._topic(call, view)
                for view in broker.views.all()
                if call.access.sees(Kind.TOPIC, view.name)
            ]
        else:
            topics = [
                await self._asked(call, each)
                for each, _ in counted(wanted, lambda each: each.topic_id if each.name is None else each.name)
            ]
        controller = broker.peer_side.controller
        brokers = kafka_brokers(broker)
        known = controller is not None and controller in brokers
        return Reply(
            MetadataResponse(
                version=version,
                brokers=[
                    MetadataResponse.MetadataResponseBroker(
                        version=version, node_id=number, host=each.host, port=each.port, rack=each.rack
                    )
                    for number, each in brokers.items()
                ],
                cluster_id=broker.entry.cluster.cluster_id,
                controller_id=controller if known else -1,
                topics=topics,
                authorized_operations=authorized_operations(call.access, Kind.CLUSTER)
                if 8 <= version <= 10 and call.request.include_cluster_authorized_operations
                else None,
            )
        )

    async def _asked(self, call: KafkaCall, wanted: Any) -> Any:
        """Return a topic that the request names by name or by id."""
        name, topic_id = wanted.name, wanted.topic_id if call.version >= 10 else None
        try:
            if name is None:
                view = self._broker.views.by_id(TopicId(str(topic_id)))
                if not call.access.allows(Operation.DESCRIBE, Kind.TOPIC, view.name):
                    return self._refused(call, None, topic_id, KafkaError.UNKNOWN_TOPIC_ID)
                return self._topic(call, view)
            if not is_name(name):
                return self._refused(call, name, None, KafkaError.INVALID_TOPIC_EXCEPTION)
            call.access.require(Operation.DESCRIBE, Kind.TOPIC, name)
            return self._topic(call, await self._view(call, name))
        except ProblemError as problem:
            error = error_of(problem, Family.DATA)
            if name is None and error is KafkaError.UNKNOWN_TOPIC_OR_PARTITION:
                error = KafkaError.UNKNOWN_TOPIC_ID
            return self._refused(call, name, topic_id, error)

    async def _view(self, call: KafkaCall, name: str) -> TopicView:
        """Return a topic; create it if the client and the configuration allow this."""
        broker = self._broker
        try:
            return broker.views.by_name(name)
        except ProblemError:
            allowed = call.version < 4 or call.request.allow_auto_topic_creation
            if not allowed or not broker.configs.auto_create_topics:
                raise
            if not call.access.allows(Operation.CREATE, Kind.TOPIC, name):
                raise
            request = CreateTopicRequest(name=name)

            async def run() -> Changed:
                view, _ = await broker.create_topic(request)
                return Changed(HTTPStatus.CREATED, {"topic": name, "partitions": view.partition_count})

            await self._changes.make(call, Change("create_topic", {}, run, request))
            return broker.views.by_name(name)

    def _refused(self, call: KafkaCall, name: str | None, topic_id: UUID | None, error: KafkaError) -> Any:
        named = name if name is not None or call.version >= 12 else ""
        return MetadataResponse.MetadataResponseTopic(
            version=call.version, error_code=error, name=named, topic_id=topic_id or NO_ID, partitions=[]
        )

    def _topic(self, call: KafkaCall, view: TopicView) -> Any:
        return MetadataResponse.MetadataResponseTopic(
            version=call.version,
            error_code=KafkaError.NONE,
            name=view.name,
            topic_id=UUID(view.topic_id),
            is_internal=view.name.startswith(HIDDEN),
            partitions=[self._partition(call.version, view, index) for index in range(view.partition_count)],
            authorized_operations=authorized_operations(call.access, Kind.TOPIC, view.name)
            if call.version >= 8 and call.request.include_topic_authorized_operations
            else None,
        )

    def _partition(self, version: int, view: TopicView, index: int) -> Any:
        kind = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
        return kind(version=version, **self._partition_fields(view, index))

    def _partition_fields(self, view: TopicView, index: int) -> dict[str, Any]:
        """Return the fields of a partition that both answers have."""
        record = view.partitions.get(PartitionIndex(index))
        fields: dict[str, Any] = {
            "error_code": KafkaError.LEADER_NOT_AVAILABLE,
            "partition_index": index,
            "leader_id": -1,
            "leader_epoch": -1,
            "replica_nodes": [],
            "isr_nodes": [],
            "offline_replicas": [],
        }
        if record is None:
            return fields
        if record.leader is not None:
            fields |= {"error_code": KafkaError.NONE, "leader_id": record.leader.broker}
        return fields | {
            "leader_epoch": record.leader_epoch,
            "replica_nodes": [each.broker for each in record.replicas],
            "isr_nodes": list(in_sync_brokers(record, self._broker.metadata.brokers)),
            "offline_replicas": offline_replicas(self._broker, record),
        }

    # -- pages of partitions

    async def describe_partitions(self, call: KafkaCall) -> Reply:
        """Return partitions of the requested topics, or of all topics, ordered by topic and partition, in pages."""
        version, request, kind = call.version, call.request, DescribeTopicPartitionsResponse
        left = max(1, min(request.response_partition_limit, DESCRIBED_MAX))
        cursor, topics = request.cursor, []
        following = None
        for name in self._described_names(call):
            if left == 0:
                following = kind.Cursor(version=version, topic_name=name, partition_index=0)
                break
            try:
                call.access.require(Operation.DESCRIBE, Kind.TOPIC, name)
                view = self._broker.views.by_name(name)
            except ProblemError as problem:
                topics.append(
                    kind.DescribeTopicPartitionsResponseTopic(
                        version=version,
                        error_code=error_of(problem, Family.TOPIC),
                        name=name,
                        topic_id=NO_ID,
                        partitions=[],
                    )
                )
                continue
            first = max(0, cursor.partition_index) if cursor and cursor.topic_name == name else 0
            end = min(view.partition_count, first + left)
            topics.append(self._described(call, view, range(first, end)))
            left -= max(0, end - first)
            if end < view.partition_count:
                following = kind.Cursor(version=version, topic_name=name, partition_index=end)
                break
        return Reply(kind(version=version, topics=topics, next_cursor=following))

    def _described_names(self, call: KafkaCall) -> Iterator[str]:
        """Yield the names of the described topics from the cursor on, in order."""
        cursor = call.request.cursor
        named = {topic.name for topic in call.request.topics} or {
            view.name for view in self._broker.views.all() if call.access.sees(Kind.TOPIC, view.name)
        }
        return (name for name in sorted(named) if cursor is None or name >= cursor.topic_name)

    def _described(self, call: KafkaCall, view: TopicView, indexes: range) -> Any:
        kind = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
        partitions = []
        for index in indexes:
            record = view.partitions.get(PartitionIndex(index))
            partitions.append(
                kind.DescribeTopicPartitionsResponsePartition(
                    version=call.version,
                    eligible_leader_replicas=[] if record is None else [each.broker for each in record.elr],
                    last_known_elr=[],
                    **self._partition_fields(view, index),
                )
            )
        return kind(
            version=call.version,
            error_code=KafkaError.NONE,
            name=view.name,
            topic_id=UUID(view.topic_id),
            is_internal=view.name.startswith(HIDDEN),
            partitions=partitions,
            # The library encodes this field as a number, and the field of other answers as a set.
            topic_authorized_operations=sum(
                1 << number for number in authorized_operations(call.access, Kind.TOPIC, view.name)
            ),
        )
