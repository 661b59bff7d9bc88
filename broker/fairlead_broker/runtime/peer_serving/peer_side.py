"""The runtime's side of calls between brokers: calls out, calls in, and the registered brokers.

The peer listener uses it to check and serve calls, forwarding to find the controller and to wait for the mirror.
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
    """Calls of followers to the leaders of this broker."""

    async def fetch(self, peer: PeerIncarnation, request: ReplicaFetchRequest) -> ReplicaFetchAnswer:
        """Answer a follower's long poll; cancelled when the follower is gone."""
        ...

    def progress(self, peer: PeerIncarnation, request: ProgressRequest) -> None:
        """Count the synced offsets of a follower."""
        ...


@dataclass(frozen=True, slots=True)
class PeerSide:
    """This broker as its peers see it, and the peers as this broker sees them."""

    peers: Peers
    mirror: Mirror
    followers: FollowerCalls
    log_ends: Callable[[Sequence[TopicIdPartition]], list[LogEnd]]
    """Returns the ends of the logs of partitions, as far as this broker has them."""
    digest: Callable[[DigestRequest], Awaitable[RangeDigest]]
    """Returns the digest of a range of this broker's copy."""
    positions: Callable[[Sequence[PositionAsked]], Awaitable[list[PositionTold]]]
    """Returns positions of partitions that this broker leads."""

    @property
    def registrations(self) -> Mapping[BrokerId, Versioned[BrokerRegistration]]:
        """Every registered broker, including this one."""
        return self.mirror.metadata.brokers

    @property
    def controller(self) -> BrokerId | None:
        """Broker with the controller key."""
        controller = self.mirror.metadata.controller
        return controller.value.broker if controller else None

    def controller_elsewhere(self) -> BrokerId | None:
        """Return the controller if it is another broker; None if it is this broker, or if there is none."""
        controller = self.controller
        return None if controller == self.peers.own.broker else controller

    async def wait_for(self, revision: Revision) -> None:
        """Return once the mirror has reached a revision. Raises `CoordinationUnavailable` if it ends before."""
        await self.mirror.wait_for(revision)
