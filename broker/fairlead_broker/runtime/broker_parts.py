"""Everything a running broker is made of, put together in the order of a start and taken apart in reverse."""

from __future__ import annotations

import asyncio
import platform
import zlib
from collections.abc import Callable
from functools import partial

from fairlead_api.identifiers import BrokerId, TopicId
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.configs import ConfigAdmin
from fairlead_broker.controlling.controllership import Controllership
from fairlead_broker.controlling.housekeeping import Housekeeping
from fairlead_broker.controlling.operations import ClusterOperations
from fairlead_broker.controlling.topics import TopicAdmin
from fairlead_broker.coordination.mirror import MirrorUpdate
from fairlead_broker.coordination.producer_registry import ProducerRegistry
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.log import LogError
from fairlead_broker.log.segments.storage import Storage
from fairlead_broker.peers.identity import PeerIdentity
from fairlead_broker.peers.peers import Peers
from fairlead_broker.registry.metadata import ClusterMetadata, ConfigChange
from fairlead_broker.runtime.configs import ClusterConfigFollower, Configs
from fairlead_broker.runtime.controller_meters import election_counter, watch_controller
from fairlead_broker.runtime.engine.budget import AnswerBudget, ByteBudget
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.loop_lag import LoopLag
from fairlead_broker.runtime.engine.supervisor import Supervisor
from fairlead_broker.runtime.engine.sync_rounds import Syncing, SyncRounds
from fairlead_broker.runtime.following.replica_fetching import ReplicaFetching
from fairlead_broker.runtime.groups.groups import Groups
from fairlead_broker.runtime.groups.lag_meters import GroupLagMeters
from fairlead_broker.runtime.groups.parts import build_groups
from fairlead_broker.runtime.groups.upkeep import GroupUpkeep
from fairlead_broker.runtime.hosting.damage import DamageAcceptance
from fairlead_broker.runtime.hosting.damage_repair import DamageRepair
from fairlead_broker.runtime.hosting.epoch_reports import EpochReports
from fairlead_broker.runtime.hosting.leader_clock import LeaderClock
from fairlead_broker.runtime.hosting.producer_names import ProducerNames
from fairlead_broker.runtime.hosting.replicas import Replicas
from fairlead_broker.runtime.hosting.role_changes import RoleChanges
from fairlead_broker.runtime.hosting.scrub import Scrub
from fairlead_broker.runtime.hosting.upkeep import Upkeep
from fairlead_broker.runtime.leading.fetching import Fetching
from fairlead_broker.runtime.leading.leader_writes import LeaderWrites
from fairlead_broker.runtime.leading.producing import Producing
from fairlead_broker.runtime.leading.records_deletion import RecordsDeletion
from fairlead_broker.runtime.leading.retention import Retention
from fairlead_broker.runtime.leading.shared_parts import SharedParts
from fairlead_broker.runtime.lifecycle.cluster_entry import Advertised, ClusterEntry, Entry
from fairlead_broker.runtime.lifecycle.departure import Departure
from fairlead_broker.runtime.meters import BrokerMeters
from fairlead_broker.runtime.peer_serving.digests import Digests
from fairlead_broker.runtime.peer_serving.log_ends import MoveProgress, log_ends
from fairlead_broker.runtime.peer_serving.peer_side import PeerSide
from fairlead_broker.runtime.peer_serving.positions import Positions
from fairlead_broker.runtime.peer_serving.replica_serving import ReplicaServing
from fairlead_broker.runtime.peer_serving.survey import Survey
from fairlead_broker.runtime.topic_views import TopicViews
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Telemetry


class BrokerParts:
    """Made by `BrokerRuntime.start`. The parts below exist once `open` has returned."""

    entry: Entry
    metadata: ClusterMetadata
    controllership: Controllership
    operations: ClusterOperations
    topic_admin: TopicAdmin
    views: TopicViews
    partitions: Replicas
    peer_side: PeerSide
    producer_registry: ProducerRegistry
    groups: Groups
    producing: Producing
    fetching: Fetching
    rounds: SyncRounds
    upkeep: Upkeep
    retention: Retention
    records_deletion: RecordsDeletion
    configs: Configs
    config_admin: ConfigAdmin
    config_follower: ClusterConfigFollower

    def __init__(
        self,
        settings: BrokerSettings,
        telemetry: Telemetry,
        clock: Clock,
        new_id: Callable[[], str],
        storage: Storage,
        coordination: Coordination | None = None,
    ) -> None:
        """`coordination`: a client of the store of a cluster, closed with the broker; one of its own without."""
        limits = settings.limits
        self._settings = settings
        self._telemetry = telemetry
        self._clock = clock
        self._new_id = new_id
        self.log = telemetry.log.bind(broker=settings.id)
        self.supervisor = Supervisor()
        self.disk = DiskPool("disk", limits.disk_threads)
        self._syncing: Syncing | None = None
        self._opening = DiskPool("opening", limits.open_partition_threads)
        self._validation = DiskPool("validation", limits.validation_threads)
        seconds = telemetry.metric("fairlead_coordination_seconds")
        self._cluster = ClusterEntry(
            settings,
            clock,
            storage,
            self._opening,
            self.supervisor,
            new_id,
            coordination,
            log=self.log,
            observe=lambda call, took: seconds.labels(call).observe(took),
        )
        self._meters = BrokerMeters(telemetry)
        self._budget = ByteBudget(limits.produce_bytes_max)
        self.answers = AnswerBudget(
            limits.answers_bytes_max, stall_seconds_max=limits.crowded_stall_seconds_max, now=clock.monotonic
        )
        self._loop_lag = LoopLag(telemetry.metric("fairlead_event_loop_lag_seconds").observe)
        self._peer_secret = new_id()
        self._peers: Peers | None = None
        self._storage_error: LogError | None = None
        self._opened = False

    @property
    def healthy(self) -> bool:
        """Whether writes are possible: no failed disk and no failed task."""
        failed = self._storage_error or self.entry.directory.failure
        return failed is None and not self.supervisor.failure.done()

    async def open(self, advertised: Advertised, release: str) -> None:
        """Enter the cluster, starts a term in every partition, start the tasks."""
        await self.supervisor.start()
        self._loop_lag.start()
        self.entry = await self._cluster.enter(advertised, release, peer_secret=self._peer_secret)
        self.metadata = self.entry.mirror.metadata
        self._build_partitions()
        self._build_calls(release)
        self._build_upkeep()
        self.entry.mirror.subscribe(self._changed)
        # Copies of partitions that others lead are kept up from here on.
        self._rounds_task = self.supervisor.spawn(self.rounds.run(), "sync rounds")
        await self.partitions.open_all()
        await self._set_strays_aside()
        # What recovery has read and synced is not read again by the next start, however soon this one is killed.
        await self.upkeep.checkpoint()
        await self.entry.open_directory()
        # Not before: a controller that is still recovering would do nothing for anybody.
        await self.controllership.begin()
        self._spawn()
        self._opened = True
        await self.partitions.settled()

    async def close(self, *, clean: bool) -> None:
        """Stop the partitions, sync, checkpoint, leave. The clean marker is written only if all of it held."""
        self._loop_lag.stop()
        synced = False
        if not self._opened:
            # A start that was broken off: partitions that wait to be recovered are left to the next one.
            self._opening.drop_queued()
        else:
            self.groups.close()
            await self.partitions.close_all()
            self._rounds_task.cancel()
            await asyncio.wait([self._rounds_task])
            synced = await self.rounds.sync_all() and self.healthy
            await self.upkeep.checkpoint()
        await self.supervisor.stop()
        if self._peers is not None:
            await self._peers.close()
        # Logs that are being opened for nobody: the directory is closed when the last of them stands.
        self._opening.drop_queued()
        await self._opening.idle()
        try:
            await self._cluster.leave(clean=clean and synced)
        finally:
            # Whatever could not be written: the program does not end before their threads.
            for pool in (self.disk, self._opening, self._validation, self._syncing):
                if pool is not None:
                    pool.close()

    def _build_shared(self) -> SharedParts:
        """What leaders and followers of this directory have in common."""
        limits, entry, life, clock = self._settings.limits, self.entry, self.entry.life, self._clock
        self.leader_writes = LeaderWrites(entry.coordination, self.metadata.keys, self.log)
        self._syncing = Syncing(limits.sync_threads, entry.directory.volume)
        self.rounds = SyncRounds(
            self._syncing,
            clock,
            unsynced_bytes_max=limits.unsynced_bytes_max,
            failed=self._directory_failed,
            observe_seconds=self._telemetry.metric("fairlead_append_fsync_seconds").observe,
        )
        return SharedParts(
            clock=clock,
            pool=self.disk,
            rounds=self.rounds,
            budget=self._budget,
            queue_batches_max=limits.partition_queue_batches_max,
            sync_interval_seconds=limits.sync_interval_seconds,
            decompressed_bytes_max=limits.decompressed_bytes_max,
            directory_failed=self._directory_failed,
            write_record=self.leader_writes.write,
            lease_confirmed=life.confirms,
        )

    def _build_partitions(self) -> None:
        entry, life, clock, log = self.entry, self.entry.life, self._clock, self.log
        shared = self._build_shared()
        self.views = TopicViews(self.metadata, life.broker, self._settings.topic_defaults)
        peers = self._peers = self._make_peers()
        self.departure = Departure(entry.registration, life, entry.mirror, peers, log)
        fetching = ReplicaFetching(
            peers, self.disk, entry.directory, self.rounds, clock, self.supervisor, log
        )
        changes = RoleChanges(
            life,
            self.metadata,
            shared,
            fetching,
            self._meters,
            self.supervisor,
            lambda: self.configs.replica_lag_seconds,
        )
        self.partitions = Replicas(
            life,
            self.metadata,
            self.views,
            entry.directory,
            self._opening,
            changes,
            fetching,
            self._meters,
            log,
        )
        life.subscribe(self.partitions.life_changed)
        life.subscribe(self._telemetry.metric("fairlead_lost_leases_total").inc)
        self.damage_repair = DamageRepair(
            entry.coordination,
            entry.mirror,
            life,
            entry.directory.identity.directory_id,
            self.partitions,
            log,
        )
        self.epoch_reports = EpochReports(entry.coordination, entry.mirror, life, self.partitions, log)
        self._build_peer_side(peers)

    def _build_peer_side(self, peers: Peers) -> None:
        """What followers and other brokers ask for."""
        limits, entry, life = self._settings.limits, self.entry, self.entry.life
        self.replica_serving = ReplicaServing(
            self.partitions.find,
            self.disk,
            self._clock,
            life.epoch,
            bytes_max=limits.fetch_bytes_max,
            wait_seconds_max=limits.fetch_wait_seconds_max,
        )
        self.move_progress = MoveProgress(self.partitions.log_of, self.metadata, peers)
        self.digests = Digests(self.partitions.log_of, self.metadata, peers, self.disk, self._clock)
        self.positions = Positions(
            self.partitions.find,
            self.partitions.log_of,
            self.metadata,
            peers,
            self.disk,
            self.supervisor.spawn,
        )
        self.peer_side = PeerSide(
            peers,
            entry.mirror,
            self.replica_serving,
            partial(log_ends, self.partitions.log_of),
            self.digests.digest,
            self.positions.tell,
        )
        self.leader_clock = LeaderClock(
            self.partitions,
            lambda: life.confirmed,
            lambda: self.configs.replica_lag_seconds,
            self.replica_serving.drop_idle,
        )

    def _make_peers(self) -> Peers:
        entry = self.entry
        identity = PeerIdentity(
            entry.cluster.cluster_id,
            entry.life.broker,
            self._peer_secret,
            lambda: entry.life.epoch,
            lambda: self.metadata.revision,
        )
        return Peers(identity, lambda: self.metadata.brokers, self._clock)

    def _build_calls(self, release: str) -> None:
        settings, limits, entry, clock = self._settings, self._settings.limits, self.entry, self._clock
        self.controllership = Controllership(
            entry.coordination,
            entry.mirror,
            lambda: entry.membership,
            clock,
            survey=Survey(self.peer_side.peers, self.partitions.log_of),
            new_start_index=self._new_start_index,
            count_elections=election_counter(self._telemetry),
        )
        watch_controller(self._telemetry, self.controllership)
        self.operations = ClusterOperations(entry.coordination, entry.mirror, self.controllership)
        self.topic_admin = TopicAdmin(
            entry.coordination,
            entry.mirror,
            lambda: self.controllership.term,
            clock,
            new_topic_id=lambda: TopicId(self._new_id()),
            new_start_index=self._new_start_index,
        )
        self.producing = Producing(
            clock,
            self._validation,
            self._budget,
            self._meters,
            on_loop_bytes_max=limits.validation_on_loop_bytes_max,
            timeout_seconds_max=limits.produce_timeout_seconds_max,
        )
        self.fetching = Fetching(
            self.partitions.find,
            self.disk,
            self._meters,
            bytes_max=limits.fetch_bytes_max,
            wait_seconds_max=limits.fetch_wait_seconds_max,
            polls_max=limits.long_polls_max,
        )
        self.producer_registry = ProducerRegistry(entry.coordination, self.metadata.keys, clock)
        self.groups = build_groups(entry, clock, self.positions, self._telemetry, self.supervisor, self.log)
        self.group_lag = GroupLagMeters(self.groups, self.positions, self.metadata, self._telemetry, clock)
        self.records_deletion = RecordsDeletion(
            self.disk, clock, self._directory_failed, self._meters.deleted
        )
        self.damage_acceptance = DamageAcceptance(self.disk, self._directory_failed, self.log)
        self.config_admin = ConfigAdmin(entry.coordination, entry.mirror)
        self.configs = Configs(self.metadata, BrokerId(settings.id), settings.config_values)
        self.config_follower = ClusterConfigFollower(self.topic_admin, self.log)
        self._meters.watch_broker(
            settings.data,
            lambda: self.fetching.waiting,
            lambda: self.healthy,
            release,
            platform.python_version(),
        )
        held = self._telemetry.metric("fairlead_held_bytes")
        held.labels("appends").set_function(lambda: self._budget.taken)
        held.labels("answers").set_function(lambda: self.answers.taken)

    def _build_upkeep(self) -> None:
        limits, directory, clock = self._settings.limits, self.entry.directory, self._clock
        self.upkeep = Upkeep(
            directory,
            self.partitions.both,
            self.disk,
            clock,
            limits.checkpoint_interval_seconds,
            bytes_max=limits.checkpoint_bytes_max,
            appended_bytes=lambda: self.rounds.appended_bytes,
            failed=self._directory_failed,
            log=self.log,
        )
        self.scrub = Scrub(
            self.partitions.both,
            self.disk,
            clock,
            pass_seconds=limits.scrub_interval_seconds,
            bytes_per_second_max=limits.scrub_bytes_per_second_max,
            count_bytes=self._telemetry.metric("fairlead_scrub_bytes_total").inc,
            count_damaged=self._telemetry.metric("fairlead_scrub_damaged_ranges_total").inc,
            log=self.log,
        )
        self.retention = Retention(
            directory,
            self.partitions,
            self.disk,
            clock,
            interval_seconds=lambda: self.configs.retention_check_seconds,
            failed=self._directory_failed,
            count_deleted=self._meters.deleted,
            log=self.log,
        )

    def _spawn(self) -> None:
        spawn = self.supervisor.spawn
        spawn(self.partitions.run(), "partitions")
        spawn(self.damage_repair.run(), "damage repair")
        spawn(self.epoch_reports.run(), "epoch reports")
        spawn(self.leader_writes.run(), "leader writes")
        spawn(self.leader_clock.run(), "leader clock")
        spawn(self.upkeep.run(), "upkeep")
        spawn(self.retention.run(), "retention")
        spawn(self.scrub.run(), "scrub")
        spawn(self.config_follower.run(), "cluster configuration")
        spawn(self.controllership.run(), "controllership")
        housekeeping = Housekeeping(
            self.entry.coordination, self.entry.mirror, lambda: self.controllership.term, self._clock
        )
        spawn(housekeeping.run(), "housekeeping")

        group_upkeep = GroupUpkeep(self.groups, self.entry.mirror, self.group_lag, self._clock, self.log)
        spawn(group_upkeep.run(), "group upkeep")
        names = ProducerNames(self.producer_registry, self.partitions, self.log)
        spawn(names.run(), "producer names")

    def _new_start_index(self) -> int:
        """Begin the placement of each topic somewhere else, so that topics of one partition are spread too."""
        return zlib.crc32(self._new_id().encode())

    def _changed(self, update: MirrorUpdate) -> None:
        for change in update.changes:
            self.views.changed(change)
            self.partitions.changed(change)
            if isinstance(change, ConfigChange):
                self.retention.config_changed()
                self.config_follower.config_changed()

    async def _set_strays_aside(self) -> None:
        known = {topic.value.topic_id for topic in self.metadata.topics.values()}
        for path in await self._opening.run(self.entry.directory.mark_strays, known):
            self.log.warning("folder of no known topic set aside", path=str(path))

    def _directory_failed(self, error: LogError) -> None:
        """The first failed write or sync ends all writes of the directory until a restart."""
        if self._storage_error is None:
            self._storage_error = error
            self._distrust_directory()
            self.log.error("data directory failed; writes are refused until a restart", reason=str(error))
            self.partitions.storage_failed()

    def _distrust_directory(self) -> None:
        """What was not synced may be gone: neither this life nor the next one may be elected for having it."""
        self._opening.submit(self.entry.directory.forget_residence)
        self.entry.registration.directory_failed()
