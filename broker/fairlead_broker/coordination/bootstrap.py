"""Steps of a broker that joins its cluster: read the cluster's id, register the broker, claim the controller's term.

When the broker starts, the runtime calls each step once, in this order. Ids and times are arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

import structlog

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_api.versions import FEATURE_LEVEL
from fairlead_broker.clock import Clock
from fairlead_broker.controller.term import ControllerTerm
from fairlead_broker.coordination.membership import Membership
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationError,
    DeleteEvent,
    Lease,
    LeaseNotFound,
    UnknownOutcome,
)
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import (
    BrokerRegistration,
    ClusterRecord,
    ConfigRecord,
    ControllerEpochRecord,
    ControllerRecord,
    decode,
    encode,
)
from fairlead_broker.registry.store_writes import (
    Get,
    KeyValue,
    Put,
    TransactionResult,
    absent,
    created_at,
    unchanged_since,
)

WAIT_EXTRA_SECONDS: Final = 5.0

_log = structlog.get_logger("fairlead.coordination")


class BrokerIdHeld(CoordinationError):
    """Another incarnation with the broker id is registered, and its registration did not end in time."""

    def __init__(self, broker: BrokerId, holder: BrokerRegistration, waited_seconds: float) -> None:
        super().__init__(
            f"broker id {broker} is held by a running broker (data {holder.addresses.any_data}, peer "
            f"{holder.addresses.peer}, release {holder.release}) and did not become free in "
            f"{waited_seconds:.0f} s; stop that broker, or give this broker another id"
        )
        self.holder = holder


class FeatureLevelTooHigh(CoordinationError):
    """The feature level of the cluster is above the feature level of this release."""


def check_feature_level(record: ClusterRecord, cluster_name: str) -> None:
    """Raise `FeatureLevelTooHigh` if the cluster is at a higher feature level than this release supports."""
    if record.feature_level > FEATURE_LEVEL:
        message = (
            f"cluster {cluster_name} is at feature level {record.feature_level}, this release "
            f"understands {FEATURE_LEVEL}; start a newer release"
        )
        raise FeatureLevelTooHigh(message)


class ClusterBootstrap:
    """Steps of a broker that joins a cluster."""

    def __init__(self, coordination: Coordination, keys: Keys, clock: Clock) -> None:
        self._coordination = coordination
        self._keys = keys
        self._clock = clock

    async def cluster(
        self, new_cluster_id: str, configuration: Mapping[str, str] = MappingProxyType({})
    ) -> ClusterRecord:
        """Return the cluster record. The first broker creates the record with the id `new_cluster_id`.

        `configuration`: values that the first broker stores for the cluster, unless the cluster has a configuration.
        Raises `FeatureLevelTooHigh`. After `UnknownOutcome` the caller repeats the call.
        """
        record = ClusterRecord(
            cluster_id=new_cluster_id, feature_level=FEATURE_LEVEL, created_us=self._clock.now_us()
        )
        key, config_key = self._keys.cluster, self._keys.cluster_config
        if configuration:
            config = encode(ConfigRecord(values=dict(configuration)))
            puts = (Put(key, encode(record)), Put(config_key, config))
            await self._coordination.transact((absent(key), absent(config_key)), puts)
        result = await self._coordination.transact(
            (absent(key),), (Put(key, encode(record)), Get(key)), (Get(key),)
        )
        return self._understood(_only(result))

    def _understood(self, item: KeyValue) -> ClusterRecord:
        standing = decode(item.key, item.value, ClusterRecord)
        check_feature_level(standing, self._keys.cluster_name)
        return standing

    async def standing_cluster(self) -> ClusterRecord | None:
        """Return the cluster record, or None if no broker has created the record. Raises `FeatureLevelTooHigh`."""
        [item] = (await self._coordination.transact((), (Get(self._keys.cluster),))).reads
        return None if item is None else self._understood(item)

    async def register(
        self,
        broker: BrokerId,
        registration: BrokerRegistration,
        ttl_seconds: int,
        *,
        wait_seconds: float | None = None,
    ) -> Membership:
        """Register the broker under a new lease. The revision of the registration is the broker epoch.

        The call waits for an earlier incarnation of the same broker id to end, for at most 2 x the time to live
        of its lease + 5 s, and then raises `BrokerIdHeld`. After any error, all keys of the failed attempt are
        removed when the new lease ends.
        """
        began = self._clock.monotonic()
        key = self._keys.broker(broker)
        waits = False
        while True:
            sent_at = self._clock.monotonic()
            lease = await self._coordination.grant_lease(ttl_seconds)
            try:
                result = await self._coordination.transact(
                    (absent(key),), (Put(key, encode(registration), lease.lease_id),), (Get(key),)
                )
            except LeaseNotFound:
                # The lease ended before the delayed transaction arrived, so no key was put.
                continue
            except UnknownOutcome:
                # After the end of the lease, the store refuses a delayed put, so the outcome is definite.
                await self._end(lease)
                raise
            if result.succeeded:
                return Membership(
                    self._coordination,
                    self._keys,
                    self._clock,
                    broker,
                    registration,
                    lease,
                    result.revision,
                    sent_at,
                )
            await self._end(lease)
            holder = decode(key, _only(result).value, BrokerRegistration)
            if not waits:
                waits = True
                if wait_seconds is None:
                    wait_seconds = 2 * (holder.lease_seconds or ttl_seconds) + WAIT_EXTRA_SECONDS
                _log.info(
                    "waiting for an earlier registration of this broker id to end",
                    broker=broker,
                    holder=holder.addresses.any_data,
                    ends_after="the end of its lease, if that broker is gone",
                    seconds_max=round(wait_seconds, 1),
                )
            assert wait_seconds is not None, "a wait time was set when a holder was found"
            if not await self._wait_until_free(key, result.revision, began + wait_seconds):
                raise BrokerIdHeld(broker, holder, wait_seconds)

    async def claim_controller(self, membership: Membership) -> ControllerTerm | None:
        """Claim the controller's term under the broker's lease. Returns None if another broker holds the term."""
        keys = self._keys
        seen = await self._coordination.transact((), (Get(keys.controller_epoch),))
        [epoch_item] = seen.reads
        epoch = ControllerEpochRecord(epoch=1)
        if epoch_item is not None:
            before = decode(epoch_item.key, epoch_item.value, ControllerEpochRecord)
            epoch = ControllerEpochRecord(epoch=before.epoch + 1, unknown=before.unknown)
        record = ControllerRecord(broker=membership.broker_id, broker_epoch=membership.broker_epoch)
        result = await self._coordination.transact(
            (
                absent(keys.controller),
                created_at(keys.broker(membership.broker_id), membership.broker_epoch),
                unchanged_since(keys.controller_epoch, epoch_item.mod_revision if epoch_item else 0),
            ),
            (
                Put(keys.controller, encode(record), membership.lease.lease_id),
                Put(keys.controller_epoch, encode(epoch)),
            ),
        )
        return ControllerTerm(keys, result.revision) if result.succeeded else None

    async def _end(self, lease: Lease) -> None:
        with suppress(LeaseNotFound):
            await self._coordination.revoke(lease)

    async def _wait_until_free(self, key: str, since: Revision, deadline: float) -> bool:
        """Wait for the deletion of the key. Returns False if the key still exists at the deadline."""
        watch = self._coordination.watch(key, Revision(since + 1))
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                async for batch in watch:
                    if DeleteEvent(key) in batch.events:
                        return True
        except TimeoutError:
            return False
        finally:
            await watch.cancel()
        return False


def _only(result: TransactionResult) -> KeyValue:
    [item] = result.reads
    assert item is not None, "the read returns a key that was put or found"
    return item
