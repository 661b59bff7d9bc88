"""Promises of this broker's replicas for vacancies, and requests for the promises of other brokers (quorum Q6).

A replica answers only once the mirror shows the vacancy and the replica has no role of an older epoch: from then on,
nothing is appended, fetched or reported in an older epoch, and no append is in progress. The promise is not stored in a
file, because a broker never returns to an older version of a partition record: within an incarnation the mirror only
advances, and the mirror of a new incarnation starts with the revision of the broker's own registration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from fairlead_api.identifiers import BrokerId, LeaderEpoch, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.vacancies import Promise
from fairlead_broker.controlling.appointments import Vacancy
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import CoordinationError
from fairlead_broker.log import PartitionLog
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.peers.promises import PromiseAsked, PromiseGiven
from fairlead_broker.registry.generations import generation_in
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import PartitionRecord


@dataclass(frozen=True, slots=True)
class Promises:
    """Gives the promises of this broker's replicas."""

    compared: Callable[[], Awaitable[None]]
    """Function that waits until the roles that the mirror no longer assigns have ended."""
    log_without_role: Callable[[TopicIdPartition, PartitionRecord], PartitionLog | None]
    """Function that returns the open, trusted log of a replica without a role."""
    mirror: Mirror
    incarnation: Incarnation
    directory: str
    """Id of the data directory."""

    async def give(self, asked: Sequence[PromiseAsked]) -> list[PromiseGiven]:
        """Return the promises of the replicas whose partition record is the requested vacancy."""
        if not asked:
            return []
        await self.mirror.wait_for(max(each.revision for each in asked))
        await self.compared()
        given = (self._promise(each) for each in asked)
        return [each for each in given if each is not None]

    def _promise(self, asked: PromiseAsked) -> PromiseGiven | None:
        found = self.mirror.metadata.partitions(asked.topic_id).get(asked.partition)
        if found is None or found.value.leader is not None or found.value.leader_epoch != asked.leader_epoch:
            return None
        replica = next(
            (each for each in found.value.replicas if each.broker == self.incarnation.broker), None
        )
        log = self.log_without_role(TopicIdPartition(asked.topic_id, asked.partition), found.value)
        if replica is None or log is None:
            return None
        return PromiseGiven(
            topic_id=asked.topic_id,
            partition=asked.partition,
            broker_epoch=self.incarnation.epoch,
            directory=self.directory,
            generation=generation_in(replica, self.directory),
            leader_epoch=asked.leader_epoch,
            last_epoch=log.last_epoch,
            end_offset=log.end_offset,
            log_start=log.log_start_offset,
        )


@dataclass(frozen=True, slots=True)
class AskForPromises:
    """Requests the promises of a broker's replicas; implements `appointments.Ask`."""

    peers: Peers
    own: Promises

    async def __call__(
        self, broker: BrokerId, vacancies: Sequence[Vacancy]
    ) -> Mapping[PartitionKey, Promise]:
        """Return the promises of a broker. A broker that cannot be reached gives no promises."""
        asked = [
            PromiseAsked(
                topic_id=each.key.topic_id,
                partition=each.key.partition,
                leader_epoch=each.leader_epoch,
                revision=each.revision,
            )
            for each in vacancies
        ]
        try:
            if broker == self.peers.own.broker:
                given = await self.own.give(asked)
            else:
                given = await self.peers.promises(broker, asked)
        except (PeerUnavailable, ProblemError, CoordinationError):
            return {}
        return {
            PartitionKey(each.topic_id, each.partition): Promise(
                each.broker_epoch,
                each.directory,
                each.generation,
                each.leader_epoch,
                LogEnd(LeaderEpoch(-1) if each.last_epoch is None else each.last_epoch, each.end_offset),
                each.log_start,
            )
            for each in given
        }
