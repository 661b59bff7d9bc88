"""The runtime's side of calls between brokers: calls out, calls in, and the registered brokers.

Built with the other parts of a broker. The peer listener checks and serves calls with it, and forwarding asks it for
the controller and the mirror.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead_api.identifiers import BrokerId, Revision, TopicIdPartition
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.peers.digests import DigestRequest, RangeDigest
from fairlead_broker.peers.messages import (
    LogEnd,
    PeerIncarnation,
    ProgressRequest,
    ReplicaFetchAnswer,
    ReplicaFetchRequest,
)
from fairlead_broker.peers.peers import Peers
from fairlead_broker.peers.positions import PositionAsked, PositionTold
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration


class FollowerCalls(Protocol):
    """What followers ask of the partitions that are led here."""

    async def fetch(self, peer: PeerIncarnation, request: ReplicaFetchRequest) -> ReplicaFetchAnswer:
        """Answer a follower's long poll; cancelled when the follower is gone."""
        ...

    def progress(self, peer: PeerIncarnation, request: ProgressRequest) -> None:
        """Take note of what a follower has made durable."""
        ...


@dataclass(frozen=True, slots=True)
class PeerSide:
    """This broker among its peers."""

    peers: Peers
    mirror: Mirror
    followers: FollowerCalls
    log_ends: Callable[[Sequence[TopicIdPartition]], list[LogEnd]]
    """Tells where the logs of partitions end, as far as they are held here."""
    digest: Callable[[DigestRequest], Awaitable[RangeDigest]]
    """Tells the checksum of a range of a copy that is held here."""
    positions: Callable[[Sequence[PositionAsked]], Awaitable[list[PositionTold]]]
    """Tells where partitions stand that are led here."""

    @property
    def registrations(self) -> Mapping[BrokerId, Versioned[BrokerRegistration]]:
        """Every registered broker, this one too."""
        return self.mirror.metadata.brokers

    @property
    def controller(self) -> BrokerId | None:
        """Broker with the controller key."""
        controller = self.mirror.metadata.controller
        return controller.value.broker if controller else None

    def controller_elsewhere(self) -> BrokerId | None:
        """Return another broker that is the controller; None if this broker is, or if there is none."""
        controller = self.controller
        return None if controller == self.peers.own.broker else controller

    async def wait_for(self, revision: Revision) -> None:
        """Return once the mirror has come to a revision. Raises `CoordinationUnavailable` if it ends before."""
        await self.mirror.wait_for(revision)
