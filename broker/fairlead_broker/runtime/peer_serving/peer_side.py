"""The runtime's side of calls between brokers: outgoing calls, incoming calls, and the registered brokers.

The peer listener uses a `PeerSide` to check and serve calls. Forwarding uses a `PeerSide` to find the controller and to
wait for the mirror.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead_api.bodies.cleaning import ReplicaCleaning
from fairlead_api.bodies.operations import BrokerReport
from fairlead_api.identifiers import BrokerId, Revision, TopicIdPartition
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.peers.cleaning import CleaningRequest
from fairlead_broker.peers.digests import DigestRequest, RangeDigest
from fairlead_broker.peers.messages import (
    LogEnd,
    PeerIncarnation,
    ProgressRequest,
    ReplicaFetchAnswer,
    ReplicaFetchRequest,
)
from fairlead_broker.peers.peers import Peers
from fairlead_broker.peers.positions import PositionAsked, PositionFound
from fairlead_broker.peers.promises import PromiseAsked, PromiseGiven
from fairlead_broker.peers.voters import PartitionVoters
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration


class FollowerCalls(Protocol):
    """Interface for the calls from followers to leaders on this broker."""

    async def fetch(self, peer: PeerIncarnation, request: ReplicaFetchRequest) -> ReplicaFetchAnswer:
        """Answer a follower's long poll; cancelled when the follower disconnects."""
        ...

    def progress(self, peer: PeerIncarnation, request: ProgressRequest) -> None:
        """Record the synced offsets of a follower."""
        ...


@dataclass(frozen=True, slots=True)
class PeerSide:
    """Incoming and outgoing calls between this broker and its peers."""

    peers: Peers
    mirror: Mirror
    followers: FollowerCalls
    log_ends: Callable[[Sequence[TopicIdPartition]], list[LogEnd]]
    """Function that returns the ends of the given partitions' logs that are open on this broker."""
    promises: Callable[[Sequence[PromiseAsked]], Awaitable[list[PromiseGiven]]]
    """Function that returns the promises of this broker's replicas for vacancies."""
    voters: Callable[[Sequence[TopicIdPartition]], list[PartitionVoters]]
    """Function that returns the voters of the partitions with a write quorum that this broker leads."""
    digest: Callable[[DigestRequest], Awaitable[RangeDigest]]
    """Function that returns the digest of a range of this broker's copy."""
    cleaning: Callable[[CleaningRequest], Awaitable[ReplicaCleaning]]
    """Function that returns the cleaning state of this broker's copy, and begins a round if requested."""
    positions: Callable[[Sequence[PositionAsked]], Awaitable[list[PositionFound]]]
    """Function that returns positions of partitions that this broker leads."""
    report: Callable[[], Awaitable[BrokerReport]]
    """Function that returns this broker's report about its disk and its Kafka listener."""

    @property
    def registrations(self) -> Mapping[BrokerId, Versioned[BrokerRegistration]]:
        """Every registered broker, including this broker."""
        return self.mirror.metadata.brokers

    @property
    def controller(self) -> BrokerId | None:
        """Broker that is the controller; None if there is no controller."""
        controller = self.mirror.metadata.controller
        return controller.value.broker if controller else None

    def controller_elsewhere(self) -> BrokerId | None:
        """Return the controller if it is another broker; None if there is no other controller."""
        controller = self.controller
        return None if controller == self.peers.own.broker else controller

    async def wait_for(self, revision: Revision) -> None:
        """Return once the mirror has reached a revision. Raises `CoordinationUnavailable` if the mirror stops."""
        await self.mirror.wait_for(revision)
