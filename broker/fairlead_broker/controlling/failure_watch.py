"""Watches the processes of all other brokers, and ends the lease of a broker whose process has ended.

Every broker runs the watch. The controller ends the leases of the other brokers, and every other broker ends only the
controller's lease. When a lease ends, the registration of its incarnation and the controller's term under the lease are
removed, and leaders and a controller are elected as after any lost lease. `controller.failure_detector` decides which
process has ended; this module opens the connections and calls the coordination store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import structlog

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.clock import Clock
from fairlead_broker.controller.failure_detector import FailureDetector
from fairlead_broker.coordination.membership import Membership
from fairlead_broker.coordination.mirror import Mirror, MirrorUpdate
from fairlead_broker.coordination.protocol import Coordination, CoordinationError, Lease, LeaseNotFound
from fairlead_broker.peers.presence import PeerRefuses, PeerUnreachable, Presence
from fairlead_broker.registry.metadata import BrokerChange, ControllerChange
from fairlead_broker.registry.records import BrokerState
from fairlead_broker.registry.store_writes import Compare, Get, created_at

RENEWED_SECONDS: Final = 10.0
"""Seconds after which a connection is replaced, because listeners close connections that send no requests."""

Connect: TypeAlias = Callable[[str], Awaitable[Presence]]
"""Function that connects to an address `host:port`, and raises `PeerRefuses` or `PeerUnreachable`."""
_Watched: TypeAlias = tuple[BrokerId, BrokerEpoch]

_log = structlog.get_logger("fairlead.controller")


class FailureWatch:
    """Connections to all other registered brokers, and the calls that end their leases."""

    def __init__(
        self,
        coordination: Coordination,
        mirror: Mirror,
        membership: Callable[[], Membership],
        clock: Clock,
        connect: Connect,
    ) -> None:
        """Create a watch. `membership` returns the broker's current membership, which may be replaced later."""
        self._coordination = coordination
        self._metadata = mirror.metadata
        self._membership = membership
        self._clock = clock
        self._connect = connect
        self._detector = FailureDetector()
        self._changed = asyncio.Event()
        self._watching: dict[_Watched, asyncio.Task[None]] = {}
        mirror.subscribe(self._mirror_changed)

    async def run(self) -> None:
        """Watch the brokers in the mirror until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                self._follow(group)
                await self._changed.wait()

    def _mirror_changed(self, update: MirrorUpdate) -> None:
        if any(isinstance(change, BrokerChange | ControllerChange) for change in update.changes):
            self._changed.set()

    def _follow(self, group: asyncio.TaskGroup) -> None:
        """Start to watch new incarnations, and stop watching ended incarnations and brokers that stop."""
        wanted: dict[_Watched, str] = {}
        for broker, registered in self._metadata.brokers.items():
            epoch, registration = BrokerEpoch(registered.create_revision), registered.value
            if broker == self._membership().broker_id:
                continue
            process = registration.peer_key or registration.peer_secret_hash
            self._detector.registered(broker, epoch, process, self._clock.monotonic())
            if registration.state is not BrokerState.STOPPING:
                wanted[broker, epoch] = registration.addresses.peer
        for ended in self._watching.keys() - wanted.keys():
            self._watching.pop(ended).cancel()
        for watched in wanted.keys() - self._watching.keys():
            self._watching[watched] = group.create_task(self._watch(*watched, wanted[watched]))

    async def _watch(self, broker: BrokerId, epoch: BrokerEpoch, address: str) -> None:
        """Keep a connection to one incarnation, and end its lease when its process has ended."""
        while True:
            pause_seconds = await self._attempt(broker, epoch, address)
            # No event announces that a broker is listening again.
            await asyncio.sleep(pause_seconds)  # noqa: TID251

    async def _attempt(self, broker: BrokerId, epoch: BrokerEpoch, address: str) -> float:
        """Connect once, wait while the connection exists, and return the seconds until the next attempt."""
        detector, clock = self._detector, self._clock
        try:
            presence = await self._connect(address)
        except PeerUnreachable:
            return detector.unreachable(broker)
        except PeerRefuses:
            pause_seconds = detector.refused(broker)
            if detector.has_ended(broker, clock.monotonic()):
                await self._end(broker, epoch)
            return pause_seconds
        detector.connected(broker, clock.monotonic())
        with presence:
            await presence.until_lost(RENEWED_SECONDS)
        return detector.closed(broker, clock.monotonic())

    async def _end(self, broker: BrokerId, epoch: BrokerEpoch) -> None:
        guards = self._guards(broker, epoch)
        if not guards or not self._detector.spend(self._clock.monotonic()):
            return
        try:
            result = await self._coordination.transact(guards, (Get(self._metadata.keys.broker(broker)),))
            [item] = result.reads if result.succeeded else (None,)
            if item is None or item.lease_id is None:
                return
            _log.warning(
                "ending the lease of a broker whose process has ended", broker=broker, broker_epoch=epoch
            )
            # A lease belongs to one incarnation, so a late call never ends a later incarnation.
            await self._coordination.revoke(Lease(item.lease_id, 0))
        except LeaseNotFound:
            return
        except CoordinationError as error:
            _log.warning(
                "lease of a broker whose process has ended is still valid", broker=broker, reason=str(error)
            )

    def _guards(self, broker: BrokerId, epoch: BrokerEpoch) -> tuple[Compare, ...]:
        """Return the compares under which this broker may end another broker's lease; empty if it may not."""
        keys, standing, own = self._metadata.keys, self._metadata.controller, self._membership()
        if standing is None or standing.value.broker not in (own.broker_id, broker):
            return ()
        return (
            created_at(keys.controller, standing.create_revision),
            created_at(keys.broker(own.broker_id), own.broker_epoch),
            created_at(keys.broker(broker), epoch),
        )
