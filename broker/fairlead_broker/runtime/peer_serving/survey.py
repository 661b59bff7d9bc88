"""Requests for the log ends of a partition's replicas, for elections in which records may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead_api.identifiers import BrokerId, LeaderEpoch, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.runtime.peer_serving.log_ends import LogOf, log_ends


@dataclass(frozen=True, slots=True)
class Survey:
    """Requests the log ends of replicas before an unclean election; implements `unclean_elections.Survey`."""

    peers: Peers
    log_of: LogOf

    async def __call__(self, key: PartitionKey, brokers: Sequence[BrokerId]) -> Mapping[BrokerId, LogEnd]:
        """Return the log ends of the brokers that answer and have opened the log."""
        wanted = TopicIdPartition(key.topic_id, key.partition)
        async with asyncio.TaskGroup() as group:
            asked = {broker: group.create_task(self._ask(broker, wanted)) for broker in brokers}
        answers = {broker: task.result() for broker, task in asked.items()}
        return {broker: end for broker, end in answers.items() if end is not None}

    async def _ask(self, broker: BrokerId, key: TopicIdPartition) -> LogEnd | None:
        if broker == self.peers.own.broker:
            ends = {end.key: end for end in log_ends(self.log_of, [key])}
        else:
            try:
                ends = dict(await self.peers.log_ends(broker, [key]))
            except (PeerUnavailable, ProblemError):
                return None
        end = ends.get(key)
        if end is None:
            return None
        return LogEnd(LeaderEpoch(-1) if end.epoch is None else end.epoch, end.end_offset)
