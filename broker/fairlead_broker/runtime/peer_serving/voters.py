"""Voters of partitions with a write quorum, as known to their leaders, for controllers and for clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.peers.voters import PartitionVoters, VoterState
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.replication import QuorumLeader
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica


@dataclass(frozen=True, slots=True)
class Voters:
    """Reports the voters of partitions that this broker leads, and asks other leaders for their partitions' voters."""

    find: Callable[[TopicId, PartitionIndex], LeaderReplica]
    peers: Peers

    def report(self, keys: Iterable[TopicIdPartition]) -> list[PartitionVoters]:
        """Return the replicas of the partitions with a write quorum that this broker leads."""
        found = []
        for key in keys:
            try:
                machine = self.find(key.topic_id, key.partition).leadership.machine
            except ProblemError:
                continue
            if isinstance(machine, QuorumLeader):
                found.append(
                    PartitionVoters(
                        topic_id=key.topic_id,
                        partition=key.partition,
                        leader_epoch=machine.leader_epoch,
                        replicas=[
                            VoterState(
                                broker=each.broker,
                                counted=machine.counted_of(each.broker),
                                near=each.broker in machine.caught_up,
                                entry_is_current=machine.is_current(each.broker),
                            )
                            for each in machine.record.replicas
                        ],
                    )
                )
        return found

    async def of(self, leader: BrokerId, keys: Sequence[TopicIdPartition]) -> list[PartitionVoters]:
        """Return the replicas as known to their leaders. The result lacks the partitions of unreachable leaders."""
        if leader == self.peers.own.broker:
            return self.report(keys)
        try:
            return await self.peers.voters(leader, keys)
        except (PeerUnavailable, ProblemError):
            return []

    async def near(
        self, leader: BrokerId, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, frozenset[BrokerId]]:
        """Return the near voters of partitions; implements `leader_moves.NearVoters`."""
        wanted = [TopicIdPartition(key.topic_id, key.partition) for key in keys]
        return {
            PartitionKey(each.topic_id, each.partition): frozenset(
                replica.broker for replica in each.replicas if replica.near
            )
            for each in await self.of(leader, wanted)
        }
