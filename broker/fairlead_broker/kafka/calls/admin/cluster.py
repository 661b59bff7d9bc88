"""The cluster: DescribeCluster, DescribeQuorum, DescribeLogDirs."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.coordination.cluster_values import cordoned_brokers
from fairlead_broker.kafka.calls.authorized_operations import authorized_operations
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import NO_ID, kafka_brokers
from fairlead_broker.kafka.calls.repetitions import merged
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import (
    DescribeClusterResponse,
    DescribeLogDirsResponse,
    DescribeQuorumResponse,
)
from fairlead_broker.runtime import Broker

BROKER_ENDPOINTS: Final = 1
NODES_SINCE: Final = 2
"""First version of DescribeQuorum that names the addresses of the voters."""
METADATA_TOPIC: Final = "__cluster_metadata"
"""Topic that Kafka's tools name in requests about the controller quorum."""


class ClusterCalls:
    """Calls about brokers, the controller and data directories."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.DESCRIBE_CLUSTER: self.describe,
            ApiKey.DESCRIBE_QUORUM: self.describe_quorum,
            ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs,
        }

    async def describe(self, call: KafkaCall) -> Reply:
        """Return the brokers with a Kafka address, and the controller."""
        version, broker = call.version, self._broker
        if version >= 1 and call.request.endpoint_type != BROKER_ENDPOINTS:
            return Reply(
                DescribeClusterResponse(
                    version=version,
                    error_code=KafkaError.MISMATCHED_ENDPOINT_TYPE,
                    error_message="a broker describes the endpoints of brokers only",
                    endpoint_type=call.request.endpoint_type,
                    cluster_id="",
                    brokers=[],
                )
            )
        brokers, controller = kafka_brokers(broker), broker.peer_side.controller
        return Reply(
            DescribeClusterResponse(
                version=version,
                error_code=KafkaError.NONE,
                cluster_id=broker.entry.cluster.cluster_id,
                controller_id=controller if controller in brokers else -1,
                brokers=[
                    DescribeClusterResponse.DescribeClusterBroker(
                        version=version,
                        broker_id=number,
                        host=each.host,
                        port=each.port,
                        rack=each.rack,
                        is_fenced=False,
                    )
                    for number, each in brokers.items()
                ],
                authorized_operations=authorized_operations(call.access, Kind.CLUSTER)
                if call.request.include_cluster_authorized_operations
                else None,
            )
        )

    # -- quorum

    async def describe_quorum(self, call: KafkaCall) -> Reply:
        """Return the controller as the leader of the metadata, and all other brokers as its observers."""
        version = call.version
        try:
            call.access.require(Operation.DESCRIBE, Kind.CLUSTER, SINGLE_NAME)
        except ProblemError as problem:
            return Reply(
                DescribeQuorumResponse(
                    version=version,
                    error_code=error_of(problem, Family.ADMIN),
                    error_message=problem.detail,
                    topics=[],
                    nodes=[],
                )
            )
        kind = DescribeQuorumResponse.TopicData
        topics = [
            kind(
                version=version,
                topic_name=topic.topic_name,
                partitions=[
                    self._quorum(version)
                    if topic.topic_name == METADATA_TOPIC and index == 0
                    else kind.PartitionData(
                        version=version,
                        partition_index=index,
                        error_code=KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
                        leader_id=-1,
                        leader_epoch=-1,
                        high_watermark=-1,
                        current_voters=[],
                        observers=[],
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in merged(
                call.request.topics,
                lambda each: each.topic_name,
                lambda each: (partition.partition_index for partition in each.partitions),
            )
        ]
        nodes = self._voters(version) if version >= NODES_SINCE else []
        return Reply(
            DescribeQuorumResponse(version=version, error_code=KafkaError.NONE, topics=topics, nodes=nodes)
        )

    def _voters(self, version: int) -> list[Any]:
        """Return the controller with its Kafka address."""
        kind = DescribeQuorumResponse.Node
        return [
            kind(
                version=version,
                node_id=number,
                listeners=[kind.Listener(version=version, name="KAFKA", host=each.host, port=each.port)],
            )
            for number, each in kafka_brokers(self._broker).items()
            if number == self._broker.peer_side.controller
        ]

    def _quorum(self, version: int) -> Any:
        kind = DescribeQuorumResponse.TopicData.PartitionData
        side, metadata = self._broker.peer_side, self._broker.metadata
        controller, term = side.controller, metadata.controller_epoch
        revision = int(metadata.metadata_revision)

        def state(broker: BrokerId) -> Any:
            own = broker == side.peers.own.broker
            return kind.ReplicaState(
                version=version,
                replica_id=broker,
                replica_directory_id=NO_ID,
                log_end_offset=revision if own else int(side.peers.seen_revision(broker)) or -1,
                last_fetch_timestamp=-1,
                last_caught_up_timestamp=-1,
            )

        return kind(
            version=version,
            partition_index=0,
            error_code=KafkaError.NONE if controller is not None else KafkaError.LEADER_NOT_AVAILABLE,
            leader_id=-1 if controller is None else controller,
            leader_epoch=-1 if term is None else term.value.epoch,
            high_watermark=revision,
            current_voters=[] if controller is None else [state(controller)],
            observers=[state(number) for number in sorted(metadata.brokers) if number != controller],
        )

    # -- directories

    async def describe_log_dirs(self, call: KafkaCall) -> Reply:
        """Return this broker's data directory with the size of each replica in the directory."""
        version = call.version
        try:
            call.access.require(Operation.DESCRIBE, Kind.CLUSTER, SINGLE_NAME)
        except ProblemError as problem:
            error = error_of(problem, Family.ADMIN)
            return Reply(DescribeLogDirsResponse(version=version, error_code=error, results=[]))
        directory, failed = self._broker.entry.directory, self._broker.health.failure is not None
        volume = await self._broker.disk.submit(shutil.disk_usage, directory.path)
        kind = DescribeLogDirsResponse.DescribeLogDirsResult
        result = kind(
            version=version,
            error_code=KafkaError.KAFKA_STORAGE_ERROR if failed else KafkaError.NONE,
            log_dir=str(directory.path),
            topics=[] if failed else self._replicas(call),
            total_bytes=volume.total,
            usable_bytes=volume.free,
            is_cordoned=self._broker.peer_side.peers.own.broker in cordoned_brokers(self._broker.metadata),
        )
        return Reply(DescribeLogDirsResponse(version=version, error_code=KafkaError.NONE, results=[result]))

    def _replicas(self, call: KafkaCall) -> list[Any]:
        kind = DescribeLogDirsResponse.DescribeLogDirsResult.DescribeLogDirsTopic
        asked = call.request.topics
        wanted = (
            None if asked is None else {(each.topic, index) for each in asked for index in each.partitions}
        )
        found: dict[str, list[Any]] = defaultdict(list)
        for replica in self._broker.replicas.both():
            topic, index = replica.topic, int(replica.key.partition)
            if wanted is not None and (topic, index) not in wanted:
                continue
            found[topic].append(
                kind.DescribeLogDirsPartition(
                    version=call.version,
                    partition_index=index,
                    partition_size=replica.log.size_bytes,
                    offset_lag=max(0, replica.log.checkpoint_high_watermark - replica.log.end_offset),
                    is_future_key=False,
                )
            )
        return [
            kind(version=call.version, name=topic, partitions=partitions)
            for topic, partitions in sorted(found.items())
        ]
