"""Controlled shutdown: other brokers take over leadership before the broker stops serving.

Used when the runtime stops (protocol section 4, rule 10). During the announcement the broker continues to serve and
forwards calls for partitions that it no longer leads, so that no client sees a failed write. If no other broker can
take over, the announcement returns at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_api.problems import ProblemError
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.registry.quorum import in_sync
from fairlead_broker.registry.records import BrokerState, PartitionRecord
from fairlead_broker.runtime.lifecycle.own_registration import OwnRegistration
from fairlead_broker.telemetry import Log

DEPARTURE_SECONDS_MAX = 4.0
"""Maximum duration of the announcement in seconds, out of the 10 s that a stop may take. A controller moves thousands
of leaders in less than four seconds, and clients retry the remaining calls.
"""
LOOK_SECONDS = 0.02
"""Number of seconds between two checks of whether other brokers have taken over and their mirrors show the change."""


class Departure:
    """Departure of one broker from its cluster."""

    def __init__(
        self,
        registration: OwnRegistration,
        incarnation: Incarnation,
        mirror: Mirror,
        peers: Peers,
        log: Log,
    ) -> None:
        self._registration = registration
        self._incarnation = incarnation
        self._mirror = mirror
        self._peer_calls = peers
        self._log = log

    async def announce(self, seconds_max: float = DEPARTURE_SECONDS_MAX) -> None:
        """Register as stopping, and wait until no partition depends on this broker or the time limit is reached."""
        if not self._peers():
            return
        try:
            async with asyncio.timeout(seconds_max):
                revision = await self._registration.stopping()
                await self._mirror.wait_for(revision)
                # Partition records change in several transactions, and no event announces the last transaction.
                while self._leads() or self._is_waited_for():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)  # noqa: TID251
                await self._wait_for_peers(self._mirror.metadata.revision)
        except TimeoutError:
            leads = self._leads()
            self._log.warning("stopping before other brokers have taken over everything", still_leading=leads)

    async def _wait_for_peers(self, revision: Revision) -> None:
        """Wait until the mirror of every remaining peer has reached a revision.

        Send requests to peers that have not reported the revision.
        """
        while late := [peer for peer in self._peers() if self._peer_calls.seen_revision(peer) < revision]:
            await asyncio.gather(*(self._ask(peer) for peer in late))
            await asyncio.sleep(LOOK_SECONDS)  # noqa: TID251 - no event announces the progress of a peer's mirror

    async def _ask(self, peer: BrokerId) -> None:
        """Send a request to a peer, because any answer contains the revision of the peer's mirror."""
        with suppress(PeerUnavailable, ProblemError):
            await self._peer_calls.log_ends(peer, ())

    def _peers(self) -> list[BrokerId]:
        """Return the other brokers that are not stopping."""
        return [
            broker
            for broker, registered in self._mirror.metadata.brokers.items()
            if broker != self._incarnation.broker and registered.value.state is not BrokerState.STOPPING
        ]

    def _leads(self) -> int:
        """Return the number of partitions that this broker leads and that another broker could lead."""
        metadata, peers = self._mirror.metadata, set(self._peers())
        return sum(
            self._is_leader(partition.value)
            and any(entry.broker in peers for entry in in_sync(partition.value))
            for topic in metadata.topics.values()
            for partition in metadata.partitions(topic.value.topic_id).values()
        )

    def _is_waited_for(self) -> bool:
        """Return whether this broker is in the isr of a partition that another running broker leads."""
        metadata, peers = self._mirror.metadata, set(self._peers())
        own = (self._incarnation.broker, self._incarnation.epoch)
        return any(
            partition.value.leader is not None
            and partition.value.leader.broker in peers
            and any((entry.broker, entry.broker_epoch) == own for entry in partition.value.isr)
            for topic in metadata.topics.values()
            for partition in metadata.partitions(topic.value.topic_id).values()
        )

    def _is_leader(self, record: PartitionRecord) -> bool:
        leader = record.leader
        return leader is not None and (leader.broker, leader.broker_epoch) == (
            self._incarnation.broker,
            self._incarnation.epoch,
        )
