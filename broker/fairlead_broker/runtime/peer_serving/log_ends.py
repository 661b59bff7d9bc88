"""Ends and sizes of logs on this broker and on other brokers, and the progress of replicas that moves add.

Other brokers request log ends when they elect a leader or stop; operators read sizes and watch the progress of moves.
The module changes no log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from fairlead_api.bodies.operations import PartitionSizes, ReplicaProgress, ReplicaSize
from fairlead_api.identifiers import BrokerId, TopicId, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.log import PartitionLog
from fairlead_broker.peers.messages import LogEnd
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.registry.metadata import ClusterMetadata

LogOf: TypeAlias = Callable[[TopicIdPartition], PartitionLog | None]
"""Function that returns the open log of a partition."""
BrokerEnds: TypeAlias = Mapping[BrokerId, Mapping[TopicIdPartition, LogEnd]]


def log_ends(log_of: LogOf, keys: Iterable[TopicIdPartition]) -> list[LogEnd]:
    """Return the ends of the logs that are open on this broker, for the given partitions."""
    held = ((key, log) for key in keys if (log := log_of(key)) is not None)
    return [
        LogEnd(
            topic_id=key.topic_id,
            partition=key.partition,
            epoch=log.last_epoch,
            end_offset=log.end_offset,
            size_bytes=log.size_bytes,
        )
        for key, log in held
    ]


class ClusterLogs:
    """Logs of replicas on all brokers; each broker receives one call for all its replicas."""

    def __init__(self, log_of: LogOf, metadata: ClusterMetadata, peers: Peers) -> None:
        self._log_of = log_of
        self._metadata = metadata
        self._peers = peers

    async def sizes(self, topics: Sequence[TopicId]) -> dict[TopicId, list[PartitionSizes]]:
        """Return the log sizes of all replicas of topics."""
        replicas = {
            TopicIdPartition(topic, index): [each.broker for each in found.value.replicas]
            for topic in topics
            for index, found in sorted(self._metadata.partitions(topic).items())
        }
        asked: dict[BrokerId, list[TopicIdPartition]] = {}
        for key, brokers in replicas.items():
            for broker in brokers:
                asked.setdefault(broker, []).append(key)
        ends = await self._ask_all(asked)
        sizes: dict[TopicId, list[PartitionSizes]] = {topic: [] for topic in topics}
        for key, brokers in replicas.items():
            logs = [_size(broker, ends[broker].get(key)) for broker in brokers]
            sizes[key.topic_id].append(PartitionSizes(partition=key.partition, replicas=logs))
        return sizes

    async def progress(
        self, moves: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, list[ReplicaProgress]]:
        """Return the progress of each added replica of partitions; an end that no broker reported is None."""
        leaders, added = dict[TopicIdPartition, BrokerId](), dict[TopicIdPartition, Sequence[BrokerId]]()
        asked: dict[BrokerId, list[TopicIdPartition]] = {}
        for key in moves:
            found = self._metadata.partitions(key.topic_id).get(key.partition)
            if found is None:
                continue
            added[key] = found.value.adding
            brokers = set(found.value.adding)
            if found.value.leader is not None:
                leaders[key] = found.value.leader.broker
                brokers.add(leaders[key])
            for broker in brokers:
                asked.setdefault(broker, []).append(key)
        ends = await self._ask_all(asked)
        return {
            key: [
                _progress(
                    broker, ends[broker].get(key), ends[leaders[key]].get(key) if key in leaders else None
                )
                for broker in brokers
            ]
            for key, brokers in added.items()
        }

    async def _ask_all(self, asked: Mapping[BrokerId, Sequence[TopicIdPartition]]) -> BrokerEnds:
        """Return the log ends of replicas by broker; a broker that does not answer has none."""
        async with asyncio.TaskGroup() as group:
            tasks = {broker: group.create_task(self._ask(broker, wanted)) for broker, wanted in asked.items()}
        return {broker: task.result() for broker, task in tasks.items()}

    async def _ask(
        self, broker: BrokerId, wanted: Sequence[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, LogEnd]:
        if broker == self._peers.own.broker:
            return {end.key: end for end in log_ends(self._log_of, wanted)}
        try:
            return await self._peers.log_ends(broker, wanted)
        except (PeerUnavailable, ProblemError):
            return {}


def _size(broker: BrokerId, end: LogEnd | None) -> ReplicaSize:
    return ReplicaSize(
        broker=broker,
        size_bytes=None if end is None else end.size_bytes,
        log_end_offset=None if end is None else end.end_offset,
    )


def _progress(broker: BrokerId, own: LogEnd | None, leader: LogEnd | None) -> ReplicaProgress:
    """Compare the log end of a replica with the log end of its leader.

    The logs may grow between the leader's answer and the replica's answer. A replica that appears to be ahead of the
    leader is reported with lag 0.
    """
    lag = None if own is None or leader is None else max(0, leader.end_offset - own.end_offset)
    return ReplicaProgress(
        broker=broker,
        log_end_offset=None if own is None else own.end_offset,
        lag_records=lag,
        copied_bytes=None if own is None else own.size_bytes,
        total_bytes=None if leader is None else leader.size_bytes,
    )
