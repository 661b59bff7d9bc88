"""Leader election among several operators through a Lease.

The holder renews the Lease every few seconds. The other operators read the Lease; if the Lease has not changed for its
duration, one operator acquires the Lease with a compare-and-set. The clocks of different machines are never compared.
The holder measures the time from its renewal request, and the other operators measure the time from the moment at which
they observe the renewal, so the holder always stops first:

    holder:  asked ---- acts for ACT_SECONDS ----| stops     (requests in flight end by then, too)
    others:        saw ------------- LEASE_SECONDS -------------| take over
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final, Protocol

from fairlead_operator.clock import Clock
from fairlead_operator.naming import LEASE, Kind, Manifest, ObjectRef
from fairlead_operator.ports import ApiError, Conflict
from fairlead_operator.telemetry import Log

LEASE_SECONDS: Final = 12.0
"""Duration of the Lease: another operator takes over if the Lease is not renewed for this time."""
ACT_SECONDS: Final = 9.0
"""Time after sending a successful renewal request during which the leader may act. The difference from `LEASE_SECONDS`
covers writes in flight.
"""
RENEW_SECONDS: Final = 3.0
LEASE_CALL_SECONDS: Final = 3.0
"""Deadline of one call on the Lease, including its retries."""
LOOK_SECONDS: Final = 2.0
"""Interval at which operators without the Lease read it, and at which they retry after an error."""


class LeaseCalls(Protocol):
    """API calls for a Lease, which are sent even while this process is not the leader, unlike other writes."""

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """Return the Lease; None if the Lease does not exist."""
        ...

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Create the Lease. Raises `Conflict` if the Lease exists."""
        ...

    async def replace(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """Replace the Lease. Raises `Conflict` if the manifest's `resourceVersion` is outdated."""
        ...


class Leadership:
    """Participation of this process in the leader election. The process may act while `seconds_left()` > 0."""

    def __init__(self, calls: LeaseCalls, ref: ObjectRef, identity: str, clock: Clock, log: Log) -> None:
        assert ref.kind == LEASE, "leadership is held by a Lease"
        self._calls = calls
        self._ref = ref
        self._identity = identity
        self._clock = clock
        self._log = log.bind(lease=f"{ref.namespace}/{ref.name}", identity=identity)
        self._acts_until = 0.0
        self._leading = asyncio.Event()
        self._seen: tuple[str, float] = ("", 0.0)
        self._lease: Manifest | None = None

    def seconds_left(self) -> float:
        """Return the seconds for which this process may still act without a renewal; 0 or less if it must not act."""
        return self._acts_until - self._clock.monotonic()

    @property
    def leads(self) -> bool:
        """Whether this process may act now."""
        return self.seconds_left() > 0

    async def wait_until_leading(self) -> None:
        """Wait until this process may act."""
        await self._leading.wait()

    async def wait_until_lost(self) -> None:
        """Wait until this process may no longer act."""
        while (left := self.seconds_left()) > 0:  # noqa: ASYNC110 - no event reports the expiry; a renewal delays it
            await asyncio.sleep(left)  # noqa: TID251 - the time for which this process may still act

    async def run(self) -> None:
        """Take part in the election until cancelled, and release the Lease afterwards."""
        try:
            while True:
                asked_at = self._clock.monotonic()
                try:
                    await self._round(asked_at)
                except ApiError as error:
                    self._log.warning("lease could not be reached", error=str(error), leads=self.leads)
                self._show()
                pause = min(RENEW_SECONDS, self.seconds_left() / 2) if self.leads else LOOK_SECONDS
                await asyncio.sleep(pause)  # noqa: TID251 - the interval between renewals
        finally:
            await self._give_back()

    async def _round(self, asked_at: float) -> None:
        """Read the Lease, and acquire or renew the Lease if allowed. Raises `ApiError`."""
        if self._lease is None or not self.leads:
            self._lease = await self._calls.get(self._ref)
        if self._lease is None:
            self._lease = await self._calls.create(LEASE, self._manifest(None))
            self._won(asked_at)
            return
        if not self._may_take(self._lease):
            return
        before, self._lease = self._lease, None
        try:
            self._lease = await self._calls.replace(self._ref, self._manifest(before))
        except Conflict:
            # Another operator wrote the Lease first, or a user edited the Lease: the next round reads the Lease.
            return
        self._won(asked_at)

    def _may_take(self, lease: Manifest) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in {"", self._identity}:
            return True
        version = str(lease["metadata"].get("resourceVersion"))
        now = self._clock.monotonic()
        if version != self._seen[0]:
            self._seen = (version, now)
        return now - self._seen[1] >= float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)

    def _manifest(self, before: Manifest | None) -> Manifest:
        spec = dict((before or {}).get("spec") or {})
        stamp = _micro_time(self._clock.now())
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = stamp
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1 if before else 0
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(LEASE_SECONDS),
            "renewTime": stamp,
        }
        metadata = {"name": self._ref.name, "namespace": self._ref.namespace}
        if before is not None:
            metadata = before["metadata"]
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}

    def _won(self, asked_at: float) -> None:
        if not self.leads:
            self._log.info("leadership taken")
        self._acts_until = asked_at + ACT_SECONDS

    def _show(self) -> None:
        if self.leads:
            self._leading.set()
        elif self._leading.is_set():
            self._leading.clear()
            self._log.warning("operator no longer leads")

    async def _give_back(self) -> None:
        """Release the Lease, so that the next leader need not wait; this process must have stopped all its writes."""
        held = self.leads and self._lease is not None
        self._acts_until = 0.0
        self._leading.clear()
        if not held:
            return
        assert self._lease is not None
        manifest = self._manifest(self._lease)
        manifest["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._calls.replace(self._ref, manifest)
        except (ApiError, TimeoutError) as error:
            self._log.warning("lease not released", error=str(error))
        else:
            self._log.info("lease released")


def _micro_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
