"""Entry of a broker into its cluster, and its exit: directory, coordination, registration.

The order of the steps is fixed (protocol sections 2 and 3): lock the directory, read the cluster's id and compare it
with the directory's, register without a directory, give up replicas whose partition records rely on a newer copy of the
directory, write the new broker epoch into the directory, and register the directory after its logs are recovered. A
broker without a registered directory is never elected, never added to an isr, and never assigned replicas, so no
partition record names an incarnation that the directory has not stored, and no election waits for a recovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from fairlead_api.configuration import SECURITY_MODE_KEY
from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_api.versions import FEATURE_LEVEL
from fairlead_broker.access.mode import SecurityMode
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.moving import check_not_moved
from fairlead_broker.coordination.bootstrap import (
    ClusterBootstrap,
    FeatureLevelTooHigh,
    check_feature_level,
)
from fairlead_broker.coordination.measured import MeasuredCoordination
from fairlead_broker.coordination.membership import Incarnation, Membership
from fairlead_broker.coordination.mirror import Mirror, MirrorUpdate
from fairlead_broker.coordination.protocol import Coordination, CoordinationUnavailable
from fairlead_broker.log import LogDirectory
from fairlead_broker.log.segments.storage import PosixStorage, Storage
from fairlead_broker.peers.identity import secret_hash
from fairlead_broker.peers.proofs import PeerEvidence
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import BrokerChange, ClusterChange, ConfigChange
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    ClusterRecord,
    Directory,
    QuarantinedReplica,
    config_texts,
)
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.supervisor import Supervisor
from fairlead_broker.runtime.lifecycle.coordination_access import (
    CoordinationElsewhere,
    open_coordination,
    patiently,
    store_path,
)
from fairlead_broker.runtime.lifecycle.directory_trust import kept_since, newer_lives, residence_of, take_out
from fairlead_broker.runtime.lifecycle.own_registration import OwnRegistration, RegisteredCertificates
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Log

GIVE_BACK_SECONDS_MAX = 1.0
"""Maximum number of seconds for releasing the lease, out of the 10 s that a stop may take."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Advertised:
    """Addresses, each as `host:port`, and certificates that a broker advertises."""

    data: str
    """Address for clients without TLS; empty if no data listener accepts connections without TLS."""
    peer: str
    ops: str
    data_tls: str | None = None
    """Address for clients with TLS; None if no data listener has TLS."""
    peer_scheme: str = "http"
    external: str | None = None
    """Base URL for clients outside the brokers' network; empty if these clients keep using the address that they
    called; None if no listener serves such clients."""
    kafka: str | None = None
    """Address for clients of Kafka's protocol; None if no listener serves such clients."""
    certificates: Callable[[], RegisteredCertificates] = RegisteredCertificates
    """Function that returns the certificates in use, which change while the broker runs."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Result of a broker's entry into its cluster."""

    directory: LogDirectory
    coordination: Coordination
    keys: Keys
    cluster: ClusterRecord
    incarnation: Incarnation
    registration: OwnRegistration
    mirror: Mirror
    own_directory: Directory
    """Data directory to be registered."""

    async def open_directory(self) -> None:
        """Register the recovered directory; from then on this broker can be elected and assigned partitions."""
        await self.registration.begin(self.own_directory)
        # The mirror must show this broker's registration with its directory.
        await self.mirror.wait_for(self.incarnation.membership.revision)

    @property
    def membership(self) -> Membership:
        """Registration of the current incarnation."""
        return self.incarnation.membership


class ClusterEntry:
    """Steps of an entry, with the opened components, which must be closed if a later step fails."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        storage: Storage,
        pool: DiskPool,
        supervisor: Supervisor,
        new_id: Callable[[], str],
        coordination: Coordination | None = None,
        *,
        log: Log | None = None,
        observe: Callable[[str, float], None] | None = None,
    ) -> None:
        """`coordination`: client of the cluster's store, closed by `leave`; if None, the settings determine the store.

        `observe` receives the name and the duration in seconds of every call to the store.
        """
        self._observe = observe
        self._settings = settings
        self._clock = clock
        self._storage = storage
        self._pool = pool
        self._supervisor = supervisor
        self._new_id = new_id
        self._log = log or structlog.get_logger("fairlead.runtime")
        self._keys = Keys(settings.cluster)
        self._given = coordination is not None
        self.directory: LogDirectory | None = None
        self._coordination = coordination
        self._incarnation: Incarnation | None = None
        self._residence: str | None = None

    async def enter(self, advertised: Advertised, release: str, evidence: PeerEvidence) -> Entry:
        """Execute every step of the entry. The caller must call `leave`, even after an exception."""
        settings, keys = self._settings, self._keys
        directory = self.directory = await self._pool.run(self._open_directory)
        coordination = await self._open_coordination(directory)
        bootstrap = ClusterBootstrap(coordination, keys, self._clock)
        cluster = await self._cluster(bootstrap, directory)
        await self._pool.run(directory.adopt_cluster, cluster.cluster_id)
        before = BrokerEpoch(directory.identity.last_broker_epoch)
        wanted = self._registration(directory, advertised, release, evidence)
        membership = await self._patiently(
            lambda: bootstrap.register(BrokerId(settings.id), wanted, settings.lease_seconds), "register"
        )
        incarnation = self._incarnation = Incarnation(membership)
        mirror = Mirror(coordination, keys)
        registration = self._keep_registered(bootstrap, incarnation, mirror, advertised)
        await self._patiently(mirror.load, "read the metadata")
        # The level may have been raised between the first read of the cluster's record and the registration.
        if mirror.metadata.cluster is not None:
            check_feature_level(mirror.metadata.cluster.value, keys.cluster_name)
        mirror.subscribe(self._level_changed)
        await self._disown_newer_lives(coordination, mirror, membership)
        await self._remember(membership)
        self._supervisor.spawn(mirror.run(), "mirror")
        own = Directory(id=directory.identity.directory_id, last_broker_epoch=before)
        return Entry(directory, coordination, keys, cluster, incarnation, registration, mirror, own)

    async def leave(self, *, clean: bool) -> None:
        """Close the opened components in reverse order.

        If `clean` is set, sync everything and mark the directory as clean.
        """
        try:
            if self.directory is not None:
                await self._pool.run(partial(self.directory.close, clean=clean))
        finally:
            await self._give_back_lease()
            if self._coordination is not None:
                await self._coordination.close()

    async def _give_back_lease(self) -> None:
        """Release the lease, so that other brokers learn of the stop at once.

        An unavailable store does not delay the stop, because the lease expires.
        """
        if self._incarnation is None:
            return
        try:
            async with asyncio.timeout(GIVE_BACK_SECONDS_MAX):
                await self._incarnation.membership.leave()
        except (CoordinationUnavailable, TimeoutError) as error:
            self._log.warning("lease not released; it will expire", reason=str(error) or "no answer in time")

    # -- steps

    def _open_directory(self) -> LogDirectory:
        here = self._present_residence()
        directory = LogDirectory.open(
            self._settings.data,
            cluster_id=None,
            broker_id=BrokerId(self._settings.id),
            clock=self._clock,
            new_directory_id=self._new_id(),
            storage=self._storage,
            residence=here,
        )
        # If `open` has just created the directory, the ids of its volume and of the kernel could not be determined
        # before the call.
        self._residence = here or self._present_residence()
        return directory

    def _present_residence(self) -> str | None:
        return residence_of(self._settings.data) if type(self._storage) is PosixStorage else None

    async def _open_coordination(self, directory: LogDirectory) -> Coordination:
        if self._coordination is None:
            store = store_path(self._settings.data)
            embedded = not self._settings.etcd_endpoints
            if embedded and directory.cluster_id is not None and not await self._pool.run(store.exists):
                # The check must run before a new store is created, because a new store would belong to another cluster.
                raise self._elsewhere(directory.cluster_id, None)
            self._coordination = await open_coordination(self._settings, self._clock, self._log)
            if embedded:
                await check_not_moved(self._coordination, self._keys, self._settings.data)
        if self._observe is None:
            return self._coordination
        return MeasuredCoordination(self._coordination, self._clock, self._observe)

    async def _cluster(self, bootstrap: ClusterBootstrap, directory: LogDirectory) -> ClusterRecord:
        """Return the cluster's record.

        A broker whose directory belongs to a cluster must never create the cluster again.
        """
        belongs_to = directory.cluster_id
        if belongs_to is None:
            new_id = self._new_id()
            mode = self._settings.security_floor
            first = {} if mode is SecurityMode.OPEN else {SECURITY_MODE_KEY: str(mode)}
            return await self._patiently(
                lambda: bootstrap.cluster(new_id, first), "read the cluster's record"
            )
        standing = await self._patiently(bootstrap.standing_cluster, "read the cluster's record")
        if standing is None or standing.cluster_id != belongs_to:
            raise self._elsewhere(belongs_to, standing)
        return standing

    def _elsewhere(self, belongs_to: str, found: ClusterRecord | None) -> CoordinationElsewhere:
        """Return the error that names the directory's cluster and advises how to proceed."""
        data, etcd = self._settings.data, self._settings.etcd
        there = f"etcd at {etcd}" if etcd else "the embedded store"
        holds = f"cluster {found.cluster_id}" if found else "no cluster"
        said = (
            f"{data} belongs to cluster {belongs_to}, but {there} has {holds} named {self._settings.cluster}"
        )
        if etcd and store_path(data).exists():
            advice = (
                "its own coordination is the embedded store in it; to move it to etcd, stop the broker and run: "
                f"fairlead cluster move-coordination --from {data} --etcd {etcd}"
                + (f" --cluster {self._settings.cluster}" if self._settings.cluster != "fairlead" else "")
            )
        elif etcd or self._given:
            advice = "start it with the store of its cluster, or use another data directory here"
        else:
            advice = "start it with the --etcd of its cluster, or restore its coordination.sqlite"
        return CoordinationElsewhere(f"{said}; {advice}")

    def _registration(
        self, directory: LogDirectory, advertised: Advertised, release: str, evidence: PeerEvidence
    ) -> BrokerRegistration:
        identity, certificates = directory.identity, advertised.certificates()
        return BrokerRegistration(
            state=BrokerState.RUNNING,
            addresses=Addresses(
                data=advertised.data,
                peer=advertised.peer,
                ops=advertised.ops,
                data_tls=advertised.data_tls,
                peer_scheme=advertised.peer_scheme,
                external=advertised.external,
                kafka=advertised.kafka,
            ),
            rack=self._settings.rack,
            release=release,
            peer_secret_hash=secret_hash(evidence.secret),
            directories=(),
            quarantined=tuple(
                QuarantinedReplica(topic_id=key.topic_id, partition=key.partition)
                for key in identity.quarantined
            ),
            intact_since=kept_since(identity, was_clean=directory.was_clean, residence=self._residence),
            lease_seconds=self._settings.lease_seconds,
            feature_level=FEATURE_LEVEL,
            tls=certificates.data,
            peer_tls=certificates.peer,
            peer_key=evidence.key.public,
            partitions_max=self._settings.limits.partitions_max,
        )

    def _keep_registered(
        self, bootstrap: ClusterBootstrap, incarnation: Incarnation, mirror: Mirror, advertised: Advertised
    ) -> OwnRegistration:
        def draining() -> bool:
            config = mirror.metadata.broker_config(incarnation.broker)
            return config is not None and config_texts(config.value.values).get("draining") == "true"

        def changed(update: MirrorUpdate) -> None:
            for change in update.changes:
                if not isinstance(change, ConfigChange | BrokerChange) or change.broker != incarnation.broker:
                    continue
                if isinstance(change, ConfigChange):
                    registration.look_again()
                elif change.before is not None and (
                    change.after is None or change.after.create_revision != change.before.create_revision
                ):
                    registration.gone(BrokerEpoch(change.before.create_revision))

        registration = OwnRegistration(
            bootstrap,
            incarnation,
            self._settings.lease_seconds,
            self._log,
            remember=self._remember,
            draining=draining,
            certificates=advertised.certificates,
        )
        mirror.subscribe(changed)
        self._supervisor.spawn(registration.keep(), "membership")
        self._supervisor.spawn(registration.run(), "registration")
        return registration

    def _level_changed(self, update: MirrorUpdate) -> None:
        """Fail the broker when the cluster's feature level becomes higher than the level of this release.

        The level is raised only if every registered broker supports it, so this can only happen to a broker that
        registers at the same moment.
        """
        for change in update.changes:
            if isinstance(change, ClusterChange) and change.after is not None:
                try:
                    check_feature_level(change.after.value, self._keys.cluster_name)
                except FeatureLevelTooHigh as error:
                    self._supervisor.spawn(_failed(error), "feature level")

    async def _disown_newer_lives(
        self, coordination: Coordination, mirror: Mirror, membership: Membership
    ) -> None:
        """Leave partition records that rely on a newer copy of the directory, or quarantine the replicas."""
        directory = self.directory
        assert directory is not None, "the directory is open"
        distrusted = []
        newer = newer_lives(
            mirror.metadata, membership.broker_id, membership.broker_epoch, directory.identity
        )
        for key in list(newer):
            taken = await self._patiently(
                partial(take_out, coordination, self._keys, membership, directory.identity, key),
                "leave the in-sync replicas",
            )
            self._log.error(
                "the data directory is older than the copy that the cluster relies on",
                partition=str(key),
                done="left isr and elr; fetched again"
                if taken
                else "quarantined: no other replica has its records",
            )
            if not taken:
                distrusted.append(key)
        if distrusted:
            await self._pool.run(directory.quarantine, distrusted)
            quarantined = tuple(
                QuarantinedReplica(topic_id=key.topic_id, partition=key.partition)
                for key in directory.identity.quarantined
            )
            await self._patiently(
                lambda: membership.update(
                    lambda before: msgspec.structs.replace(before, quarantined=quarantined)
                ),
                "register the quarantined replicas",
            )

    async def _remember(self, membership: Membership) -> None:
        """Write a new incarnation into the directory, before this broker leads or fetches in that incarnation."""
        directory = self.directory
        assert directory is not None, "the directory is open"
        epoch = membership.broker_epoch
        await self._pool.run(
            partial(
                directory.set_broker_epoch,
                epoch,
                intact_since=membership.registration.intact_since or epoch,
                residence=self._residence,
            )
        )

    async def _patiently(self, attempt: Callable[[], Awaitable[Answer]], what: str) -> Answer:
        """Retry an attempt while etcd is unavailable; with the embedded store, make a single attempt."""
        if not self._settings.etcd_endpoints:
            return await attempt()
        return await patiently(attempt, what, self._log)


async def _failed(error: FeatureLevelTooHigh) -> None:
    raise error
