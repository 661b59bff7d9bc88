"""Upkeep of this broker's registration.

One task keeps the lease alive; if the lease is lost, the task registers the broker again in a new incarnation. Another
task writes changes to the registration: draining, stopping, a failed directory. The runtime runs the tasks;
`cluster_entry` creates them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from fairlead_api.identifiers import BrokerEpoch, Revision
from fairlead_broker.coordination.bootstrap import ClusterBootstrap
from fairlead_broker.coordination.membership import Incarnation, Membership, MembershipLost
from fairlead_broker.coordination.protocol import CoordinationClosed, CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.records import BrokerRegistration, BrokerState, CertificateRecord, Directory
from fairlead_broker.runtime.lifecycle.coordination_access import patiently
from fairlead_broker.telemetry import Log

RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RegisteredCertificates:
    """Certificates in use that the registration shows, so that operators see when a replacement is complete."""

    data: CertificateRecord | None = None
    peer: CertificateRecord | None = None


class OwnRegistration:
    """Registration of this broker for the whole lifetime of the process."""

    def __init__(
        self,
        bootstrap: ClusterBootstrap,
        incarnation: Incarnation,
        lease_seconds: int,
        log: Log,
        *,
        remember: Callable[[Membership], Awaitable[None]],
        draining: Callable[[], bool],
        certificates: Callable[[], RegisteredCertificates] = RegisteredCertificates,
    ) -> None:
        """`remember` writes a new incarnation to the data directory; `draining` returns whether a drain is requested.

        `certificates` returns the certificates in use.

        A new incarnation is registered without a directory. The directory is registered after it has stored the new
        epoch.
        """
        self._bootstrap = bootstrap
        self._incarnation = incarnation
        self._lease_seconds = lease_seconds
        self._log = log
        self._remember = remember
        self._draining = draining
        self._certificates = certificates
        self._begun = asyncio.Event()
        self._wake = asyncio.Event()
        self._stopping = False
        self._directories: tuple[Directory, ...] = ()
        """Directories to register; empty until the data directory stores the current epoch."""
        self._scope: asyncio.Timeout | None = None
        """Timeout of the task that keeps one lease alive."""
        self._written: set[asyncio.Future[None]] = set()

    async def begin(self, directory: Directory) -> None:
        """Register the data directory, which has been recovered and has stored the first incarnation.

        After the call, a lost incarnation is always followed by a new incarnation. Returns once the directory is
        registered in any incarnation. The call may wait for coordination.
        """
        self._directories = (directory,)
        self._begun.set()
        await self._in_line()

    def look_again(self) -> None:
        """Compare the desired registration with the stored registration.

        Call this method after each change to the desired registration.
        """
        self._wake.set()

    def gone(self, epoch: BrokerEpoch) -> None:
        """Handle the removal of an incarnation's registration, even if its lease is alive."""
        if epoch != self._incarnation.epoch:
            return
        self._incarnation.membership.end()
        # A failed update and the mirror may both report the removal of the registration before the task has ended.
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    def directory_failed(self) -> None:
        """Remove the directory from the registration, because the records in the directory are no longer reliable."""
        self._directories = ()
        self.look_again()

    async def stopping(self) -> Revision:
        """Register as stopping; return the revision of the change. The call may wait for coordination."""
        self._stopping = True
        await self._in_line()
        return self._incarnation.membership.revision

    async def keep(self) -> None:
        """Keep the broker registered until cancelled. Raises `BrokerIdHeld` if another broker has taken the id."""
        while True:
            membership = self._incarnation.membership
            try:
                async with asyncio.timeout(None) as self._scope:
                    await membership.run()
            except (MembershipLost, TimeoutError) as error:
                reason = str(error) or "the registration was removed"
                self._log.error("registration lost; registering again", reason=reason)
            self._scope = None
            # Other keys of the lease, such as the controller's term, must not outlive the incarnation.
            with suppress(CoordinationUnavailable, UnknownOutcome):
                await membership.leave()
            await self._begun.wait()
            await self._begin_again(membership.registration, membership.broker_epoch)

    async def run(self) -> None:
        """Write changes to the registration to coordination until cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._bring_in_line()
        finally:
            for written in self._written:
                if not written.done():
                    written.set_exception(MembershipLost("the broker no longer keeps its registration"))

    async def _in_line(self) -> None:
        """Wait until coordination stores the desired registration."""
        written = asyncio.get_running_loop().create_future()
        self._written.add(written)
        self.look_again()
        try:
            await written
        finally:
            self._written.discard(written)

    async def _begin_again(self, before: BrokerRegistration, epoch: BrokerEpoch) -> None:
        """Register this process in a new incarnation. No record is lost if the process keeps running."""
        successor = msgspec.structs.replace(
            self._wanted(before), directories=(), intact_since=before.intact_since or epoch
        )
        membership = await patiently(
            lambda: self._bootstrap.register(self._incarnation.broker, successor, self._lease_seconds),
            "register again",
            self._log,
        )
        # The directory must store the epoch before the broker acts or is elected in the new incarnation, because an
        # older copy of the directory is recognised by its epoch.
        await self._remember(membership)
        self._directories = tuple(
            Directory(id=each.id, last_broker_epoch=epoch) for each in self._directories
        )
        self._incarnation.begin(membership)
        self._log.info("registered again", broker_epoch=membership.broker_epoch, before=epoch)
        self.look_again()

    async def _bring_in_line(self) -> None:
        membership = self._incarnation.membership
        while self._wanted(membership.registration) != membership.registration:
            try:
                await membership.update(self._wanted)
            except MembershipLost:
                # The next incarnation will be registered with the desired values.
                self.gone(membership.broker_epoch)
                return
            except CoordinationClosed:
                raise
            except (CoordinationUnavailable, UnknownOutcome) as error:
                self._log.warning("registration not written yet", reason=str(error))
                # The store is unavailable, and no event announces when it is available again.
                await asyncio.sleep(RETRY_SECONDS)  # noqa: TID251
        for written in self._written:
            if not written.done():
                written.set_result(None)

    def _wanted(self, registration: BrokerRegistration) -> BrokerRegistration:
        """Return the registration with the desired state, directories and certificates."""
        state = BrokerState.RUNNING
        if self._stopping:
            state = BrokerState.STOPPING
        elif self._draining():
            state = BrokerState.DRAINING
        certificates = self._certificates()
        return msgspec.structs.replace(
            registration,
            state=state,
            directories=self._directories,
            tls=certificates.data,
            peer_tls=certificates.peer,
        )
