"""A broker's membership in the cluster: its registration, under a lease that it keeps alive while it runs.

`bootstrap` creates the membership, and the runtime runs it. When the lease is lost, the broker epoch ends
permanently. The broker must then register again and wait for records with higher leader epochs (protocol section
3, rule 7). A `Membership` is one incarnation, and the `Incarnation` of the process is the current one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationClosed,
    CoordinationError,
    CoordinationUnavailable,
    Lease,
    LeaseNotFound,
)
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import BrokerRegistration, decode, encode
from fairlead_broker.registry.store_writes import Get, Put, created_at, unchanged_since

KEEP_ALIVES_PER_TTL: Final = 3
"""Number of keep-alives in one time to live. Two keep-alives may be lost before the lease ends."""
RETRIES_PER_TTL: Final = 30
"""Number of attempts in one time to live after a failed keep-alive, so that the lease survives a lost attempt."""
MARGIN_SHARE: Final = 0.25
"""Fraction of the time to live that the broker does not rely on, because of clock drift and message delays."""

_log = structlog.get_logger("fairlead.coordination")


class MembershipLost(CoordinationError):
    """The incarnation has ended, because its lease or registration has ended."""


class Membership:
    """One incarnation of a registered broker."""

    def __init__(
        self,
        coordination: Coordination,
        keys: Keys,
        clock: Clock,
        broker: BrokerId,
        registration: BrokerRegistration,
        lease: Lease,
        revision: Revision,
        confirmed_at: float,
    ) -> None:
        """Create the membership for a registration written at `revision`, with a lease requested at `confirmed_at`."""
        self._coordination = coordination
        self._key = keys.broker(broker)
        self._clock = clock
        self._mod_revision = revision
        self.lease = lease
        self.broker_id = broker
        self.broker_epoch = BrokerEpoch(revision)
        self.registration = registration
        """Registration as stored."""
        self.confirmed_at = confirmed_at
        """Monotonic time in seconds at which the last successful keep-alive was sent."""
        self._over = False

    @property
    def revision(self) -> Revision:
        """Revision of the stored registration. A mirror at this revision shows the last change to the registration."""
        return self._mod_revision

    @property
    def is_confirmed(self) -> bool:
        """Whether the lease is certainly valid according to this machine's clock, with a margin."""
        if self._over:
            return False
        sure_seconds = self.lease.ttl_seconds * (1 - MARGIN_SHARE)
        return self._clock.monotonic() < self.confirmed_at + sure_seconds

    async def run(self) -> None:
        """Keep the lease alive until cancelled. Raises `MembershipLost` or `CoordinationClosed`."""
        ttl_seconds, pause_seconds = self.lease.ttl_seconds, 0.0
        while True:
            # The next keep-alive is scheduled from the time at which the last confirmed keep-alive was sent, even if
            # its answer was slow.
            due = self.confirmed_at + ttl_seconds / KEEP_ALIVES_PER_TTL
            # No event announces that a keep-alive is due.
            await asyncio.sleep(max(pause_seconds, due - self._clock.monotonic()))  # noqa: TID251
            confirmed = await self._try_to_keep_alive()
            pause_seconds = 0.0 if confirmed else ttl_seconds / RETRIES_PER_TTL

    async def _try_to_keep_alive(self) -> bool:
        try:
            await self.keep_alive()
        except CoordinationClosed:
            raise
        except CoordinationUnavailable as error:
            _log.warning("lease not kept alive", reason=str(error), confirmed=self.is_confirmed)
            return False
        return True

    async def keep_alive(self) -> None:
        """Restart the lease's time to live. Raises `MembershipLost`."""
        sent_at = self._clock.monotonic()
        try:
            await self._coordination.keep_alive(self.lease)
        except LeaseNotFound as error:
            raise self._lost() from error
        self.confirmed_at = max(self.confirmed_at, sent_at)

    async def update(self, change: Callable[[BrokerRegistration], BrokerRegistration]) -> Revision:
        """Replace the registration with a changed registration, and return the new revision.

        Raises `MembershipLost`. After `UnknownOutcome` the caller repeats the call, which applies the change to the
        stored registration.
        """
        while True:
            changed = change(self.registration)
            result = await self._coordination.transact(
                (created_at(self._key, self.broker_epoch), unchanged_since(self._key, self._mod_revision)),
                (Put(self._key, encode(changed), self.lease.lease_id),),
                (Get(self._key),),
            )
            if result.succeeded:
                self.registration, self._mod_revision = changed, result.revision
                return result.revision
            [standing] = result.reads
            if standing is None or BrokerEpoch(standing.create_revision) != self.broker_epoch:
                raise self._lost()
            # Since no other broker writes this key, the answer to an earlier write by this broker must have been
            # lost.
            self.registration = decode(self._key, standing.value, BrokerRegistration)
            self._mod_revision = standing.mod_revision

    def end(self) -> None:
        """Mark this incarnation as ended, so that later keep-alives do not confirm the lease."""
        self._over = True

    async def leave(self) -> None:
        """End the lease, which atomically removes the registration and every other key under the lease."""
        self.end()
        try:
            await self._coordination.revoke(self.lease)
        except LeaseNotFound:
            _log.info("lease had already ended", broker=self.broker_id)

    def _lost(self) -> MembershipLost:
        self.end()
        return MembershipLost(
            f"broker {self.broker_id} lost its registration of epoch {self.broker_epoch} (lease of "
            f"{self.lease.ttl_seconds} s); it must register again"
        )


class Incarnation:
    """The current incarnation of this broker: its epoch, and whether its lease is still confirmed.

    A process uses a single object of this class for its whole run. When the lease is lost, `cluster_entry` registers
    the broker again and the object begins the next incarnation. The components that serve calls compare their epoch
    with the current epoch, and every write names the epoch in which it was decided. The next incarnation never writes a
    decision of an ended incarnation (protocol section 3, rules 1 and 7).
    """

    def __init__(self, membership: Membership) -> None:
        """Begin the first incarnation of this process."""
        self._membership = membership
        self._listeners: list[Callable[[], None]] = []

    @property
    def broker(self) -> BrokerId:
        """Id of this broker, which is the same in every incarnation."""
        return self._membership.broker_id

    @property
    def epoch(self) -> BrokerEpoch:
        """Epoch of the current incarnation.

        Epochs only increase, and an epoch is on disk before this property returns it.
        """
        return self._membership.broker_epoch

    @property
    def confirmed(self) -> bool:
        """Whether the lease of the current incarnation cannot have expired yet."""
        return self._membership.is_confirmed

    def confirms(self, epoch: BrokerEpoch) -> bool:
        """Return whether an incarnation is the current one with a confirmed lease.

        Work of an ended incarnation must not rely on the lease of the next incarnation (protocol section 3, rule 7).
        """
        return epoch == self.epoch and self.confirmed

    @property
    def membership(self) -> Membership:
        """Registration of the current incarnation.

        A `Membership` that a caller has stored still refers to the incarnation in which it was read.
        """
        return self._membership

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call a function on the event loop when an incarnation begins.

        Return a function that cancels the subscription. `on_change` must not block and must not raise. It is not called
        if the lease merely becomes unconfirmed.
        """
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    def begin(self, membership: Membership) -> None:
        """Start the next incarnation, whose epoch the data directory already stores."""
        assert membership.broker_id == self.broker, "all incarnations belong to one broker"
        assert membership.broker_epoch > self.epoch, "broker epochs only increase"
        self._membership = membership
        for listener in tuple(self._listeners):
            listener()
