"""Metadata: brokers with a Kafka address, and topics with the leaders of their partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import PartitionIndex, TopicId, is_name
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import NO_ID, kafka_brokers, offline_replicas
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import MetadataResponse
from fairlead_broker.runtime import Broker, TopicView


class MetadataCalls:
    """Calls about brokers and topics, which every client makes first."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {ApiKey.METADATA: self.metadata}

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
            topics = [await self._asked(call, each) for each in wanted]
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
            view, _ = await broker.create_topic(CreateTopicRequest(name=name))
            return view

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
            is_internal=False,
            partitions=[self._partition(call.version, view, index) for index in range(view.partition_count)],
        )

    def _partition(self, version: int, view: TopicView, index: int) -> Any:
        record = view.partitions.get(PartitionIndex(index))
        leader = None if record is None else record.leader
        return MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
            version=version,
            error_code=KafkaError.NONE if leader is not None else KafkaError.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=-1 if leader is None else leader.broker,
            leader_epoch=-1 if record is None else record.leader_epoch,
            replica_nodes=[] if record is None else [each.broker for each in record.replicas],
            isr_nodes=[] if record is None else [each.broker for each in record.isr],
            offline_replicas=[] if record is None else offline_replicas(self._broker, record),
        )
