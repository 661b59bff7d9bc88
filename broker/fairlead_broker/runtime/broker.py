"""A broker without its listeners: its components, its phase, and the calls that use several components.

`wiring.broker.open_broker` builds a `Broker`. `server` uses the components directly; `Broker` has methods only for
calls that use several components or depend on the phase. The module does not use HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from fairlead_api.batch.validation import KEYED_EXTENSIONS, NO_EXTENSIONS, validate_produced
from fairlead_api.bodies.metadata import BrokerDescription
from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.configuration import ConfigEntry, ConfigInput
from fairlead_api.identifiers import BrokerEpoch, BrokerId, Offset, TopicId
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.configs import ConfigAdmin
from fairlead_broker.controlling.controllership import Controllership
from fairlead_broker.controlling.operation_refusals import topic_is_mirror
from fairlead_broker.controlling.operations import ClusterOperations
from fairlead_broker.controlling.topics import TopicAdmin
from fairlead_broker.coordination.cluster_values import cordoned_brokers, registered_states
from fairlead_broker.coordination.producer_registry import AllocatedProducer, ProducerRegistry
from fairlead_broker.registry.caller_side import CallerSide
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.audit_log import AuditLog
from fairlead_broker.runtime.configs import Configs
from fairlead_broker.runtime.engine.budget import AnswerBudget
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.supervisor import Supervisor
from fairlead_broker.runtime.engine.sync_rounds import SyncRounds
from fairlead_broker.runtime.groups.groups import Groups
from fairlead_broker.runtime.groups.lag_meters import GroupLagMeters
from fairlead_broker.runtime.hosting.damage import DamageAcceptance, DamageRepair
from fairlead_broker.runtime.hosting.directory_health import DirectoryHealth
from fairlead_broker.runtime.hosting.replicas import Replicas
from fairlead_broker.runtime.hosting.scrub import Scrub
from fairlead_broker.runtime.hosting.upkeep import Upkeep
from fairlead_broker.runtime.leading.fetching import Fetching
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.leading.producing import ByteBudget, Producing
from fairlead_broker.runtime.leading.records_deletion import RecordsDeletion
from fairlead_broker.runtime.leading.retention import Retention
from fairlead_broker.runtime.lifecycle.cluster_entry import Entry
from fairlead_broker.runtime.lifecycle.departure import Departure
from fairlead_broker.runtime.linking.links import Links
from fairlead_broker.runtime.peer_serving.cleanings import Cleanings
from fairlead_broker.runtime.peer_serving.digests import Digests
from fairlead_broker.runtime.peer_serving.log_ends import ClusterLogs
from fairlead_broker.runtime.peer_serving.peer_side import PeerSide
from fairlead_broker.runtime.peer_serving.positions import Positions
from fairlead_broker.runtime.peer_serving.replica_serving import ReplicaServing
from fairlead_broker.runtime.peer_serving.reports import Reports
from fairlead_broker.runtime.peer_serving.voters import Voters
from fairlead_broker.runtime.quota_exchange import QuotaExchange
from fairlead_broker.runtime.quota_view import QuotaView
from fairlead_broker.runtime.running_reads import RunningReads
from fairlead_broker.runtime.security_changes import SecurityChanges
from fairlead_broker.runtime.security_view import SecurityView
from fairlead_broker.runtime.topic_views import TopicView, TopicViews, limits_of
from fairlead_broker.runtime.transactions.transactions import Transactions
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Log, Telemetry


class Phase(Enum):
    """Phase of a broker's run; a run never returns to an earlier phase."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class BrokerState:
    """Phase of a broker in one run of its process.

    The broker's state is created before the broker, because the probes of the ops listener read the state.
    """

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self._serves: Callable[[], bool] = lambda: False

    def run(self, serves: Callable[[], bool]) -> None:
        """Enter the phase `RUNNING`; `serves` returns whether the components are healthy and caught up."""
        self._serves = serves
        self.phase = Phase.RUNNING

    @property
    def ready(self) -> bool:
        """Whether the broker is running, its directory is healthy, and each replica has caught up once."""
        return self.phase is Phase.RUNNING and self._serves()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Broker:
    """An opened broker of one cluster."""

    settings: BrokerSettings
    release: str
    telemetry: Telemetry
    clock: Clock
    state: BrokerState
    log: Log
    supervisor: Supervisor
    disk: DiskPool
    validation: DiskPool
    produce_budget: ByteBudget
    answers: AnswerBudget
    entry: Entry
    configs: Configs
    views: TopicViews
    health: DirectoryHealth
    rounds: SyncRounds
    replicas: Replicas
    departure: Departure
    damage_repair: DamageRepair
    replica_serving: ReplicaServing
    cluster_logs: ClusterLogs
    digests: Digests
    cleanings: Cleanings
    voters: Voters
    positions: Positions
    reports: Reports
    peer_side: PeerSide
    controllership: Controllership
    operations: ClusterOperations
    topic_admin: TopicAdmin
    config_admin: ConfigAdmin
    links: Links
    security: SecurityView
    audit: AuditLog
    reads: RunningReads
    """Fetches and tails that wait for records."""
    quotas: QuotaView
    quota_exchange: QuotaExchange
    security_changes: SecurityChanges
    producing: Producing
    fetching: Fetching
    producer_registry: ProducerRegistry
    transactions: Transactions
    coordinated_groups: Groups
    """Groups of this broker, available in every phase; client calls use `groups` instead."""
    group_lag: GroupLagMeters
    records_deletion: RecordsDeletion
    damage_acceptance: DamageAcceptance
    upkeep: Upkeep
    scrub: Scrub
    retention: Retention
    close: Callable[[bool], Awaitable[None]]
    """Function that closes all components in the reverse order of their start, given whether the stop is orderly."""

    # -- phases

    async def announce_stop(self) -> None:
        """Hand leaderships and groups over to other brokers while this broker still serves.

        The call returns after at most `DEPARTURE_SECONDS_MAX`.
        """
        if self.state.phase is Phase.RUNNING:
            await self.departure.announce()
            await self.coordinated_groups.release_all()

    async def stop_answering(self) -> None:
        """Refuse new calls, answer long polls at once, and answer all other calls within the time limit; idempotent.

        While calls are being answered, unsynced records are synced, so that few bytes are left to sync at the end.
        """
        if self.state.phase is not Phase.RUNNING:
            return
        self.state.phase = Phase.STOPPING
        self.fetching.answer_all()
        self.rounds.hurry()
        await self.producing.stop(self.settings.limits.stop_answer_seconds)
        # The parked fetches from followers are answered last, because pending appends with acks=all need further
        # fetches.
        self.replica_serving.answer_all()

    async def stop(self) -> None:
        """Stop answering, sync everything, write the checkpoint and the clean marker, and leave the cluster.

        The call is idempotent.
        """
        await self.stop_answering()
        if self.state.phase is not Phase.STOPPED:
            await self.close(True)
            self.state.phase = Phase.STOPPED

    def admit(self) -> None:
        """Raise `shutting_down` unless the broker is running."""
        if self.state.phase is not Phase.RUNNING:
            raise refusals.shutting_down()

    @property
    def ready(self) -> bool:
        """Whether the broker serves clients."""
        return self.state.ready

    @property
    def failure(self) -> asyncio.Future[BaseException]:
        """Future that receives the exception of a task that failed unexpectedly; the process must exit afterwards."""
        return self.supervisor.failure

    # -- the cluster

    @property
    def metadata(self) -> ClusterMetadata:
        """State of the cluster in this broker's mirror."""
        return self.entry.mirror.metadata

    @property
    def feature_level(self) -> int:
        """Feature level of the cluster, as last seen."""
        found = self.metadata.cluster
        return self.entry.cluster.feature_level if found is None else found.value.feature_level

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """Epoch of the broker's current incarnation."""
        return self.entry.incarnation.epoch

    def brokers(self, side: CallerSide) -> list[BrokerDescription]:
        """Return the registered brokers, ordered by id, with their addresses on the client's side (`side`)."""
        cordoned, states = cordoned_brokers(self.metadata), registered_states(self.metadata)
        return [
            BrokerDescription(
                id=broker,
                address=side.url_of(registered.value.addresses),
                external_address=registered.value.addresses.external,
                rack=registered.value.rack,
                state=states[broker].value,
                cordoned=broker in cordoned,
            )
            for broker, registered in sorted(self.metadata.brokers.items())
        ]

    def known_brokers(self, side: CallerSide) -> list[BrokerDescription]:
        """Return all known brokers by id, including unregistered ones, with the replicas that a drain cannot move."""
        cordoned = cordoned_brokers(self.metadata)
        gone = [
            BrokerDescription(id=broker, address=None, state="gone", cordoned=broker in cordoned)
            for broker in self.operations.gone()
        ]
        found = [
            msgspec.structs.replace(each, immovable=self.operations.immovable(BrokerId(each.id)))
            for each in (*self.brokers(side), *gone)
        ]
        return sorted(found, key=lambda each: each.id)

    # -- configuration

    def broker_config(self, broker: BrokerId) -> dict[str, ConfigEntry]:
        """Return every key that can be set on a broker, with its value and source. Raises `broker_not_found`."""
        self.config_admin.check_broker(broker)
        return self.configs.of_broker(broker)

    async def alter_cluster_config(self, patch: Mapping[str, ConfigInput] | None) -> dict[str, ConfigEntry]:
        """Apply a merge patch to the cluster's configuration.

        Return the resulting configuration once this broker applies it.
        """
        self.admit()
        await self.config_admin.alter_cluster(patch)
        await self.topic_admin.follow_cluster_config()
        await self.replicas.settled()
        return self.configs.of_cluster()

    async def alter_broker_config(
        self, broker: BrokerId, patch: Mapping[str, ConfigInput] | None
    ) -> dict[str, ConfigEntry]:
        """Apply a merge patch to a broker's configuration.

        Return the resulting configuration once this broker applies it.
        """
        self.admit()
        await self.config_admin.alter_broker(broker, patch)
        await self.replicas.settled()
        return self.configs.of_broker(broker)

    # -- topics

    async def create_topic(
        self, request: CreateTopicRequest, *, dry_run: bool = False
    ) -> tuple[TopicView, bool]:
        """Create a topic.

        Return the topic and whether it is new, once the topic's partitions on this broker accept records.
        """
        self.admit()
        record, created = await self.topic_admin.create(request, dry_run=dry_run)
        if dry_run:
            return self.views.preview(request.name, record), created
        await self.replicas.settled()
        return self.views.by_name(request.name), created

    async def alter_topic(
        self, name: str, request: AlterTopicRequest, topic_id: TopicId | None = None
    ) -> TopicView:
        """Change a topic's configuration or add partitions; return the topic once this broker applies the change."""
        self.admit()
        self._check_not_mirror(name)
        await self.topic_admin.alter(name, request, topic_id)
        await self.replicas.settled()
        return self.views.by_name(name)

    async def delete_topic(self, name: str, topic_id: TopicId | None = None) -> None:
        """Delete a topic; return once the topic's name is free and its files on this broker are removed."""
        self.admit()
        await self.topic_admin.delete(name, topic_id)
        await self.replicas.settled()
        await self.replicas.files_removed()

    def _check_not_mirror(self, name: str) -> None:
        """Raise `topic_is_mirror` for a topic whose configuration and partitions follow its source (rule L7)."""
        topic = self.metadata.topics.get(name)
        if topic is not None and topic.value.mirror is not None:
            raise topic_is_mirror(name, topic.value.mirror)

    # -- records and groups

    @property
    def groups(self) -> Groups:
        """Consumer groups, for calls from clients. Raises `shutting_down`."""
        self.admit()
        return self.coordinated_groups

    async def allocate_producer(self, name: str | None) -> AllocatedProducer:
        """Return a new producer id, or the next epoch of a named producer. Raises like `ProducerRegistry.allocate`."""
        self.admit()
        return await self.producer_registry.allocate(name)

    async def delete_records(self, replica: LeaderReplica, offset: Offset | None) -> Offset:
        """Delete a partition's records below an offset; return the new log start.

        If the offset is None, all committed records are deleted. The deletion is durable on return. Raises
        `offset_out_of_range` for an offset above the high watermark, `offset_not_available` while the high watermark is
        unknown, `disk_full`, and `storage_failed`.
        """
        self.admit()
        return await self.records_deletion.delete(replica, offset)

    async def accept_damage(
        self, replica: LeaderReplica, first_offset: Offset, next_good_offset: Offset
    ) -> None:
        """Accept the loss of the records in a damaged range. Later reads skip the lost range, even after a restart.

        Raises `disk_full`, `storage_failed`, or `conflict` unless exactly this range is damaged.
        """
        self.admit()
        await self.damage_acceptance.accept(replica, first_offset, next_good_offset)

    def check_produced(self, topic: TopicView, batch: memoryview, *, keyed: bool) -> None:
        """Raise the problem with which the leader would refuse a batch.

        The topic need not exist yet. The method can be called in any thread.
        """
        limits = limits_of(topic.config, self.settings.limits.decompressed_bytes_max)
        own = KEYED_EXTENSIONS if keyed else NO_EXTENSIONS
        validate_produced(batch, limits, self.clock.now_us(), own)

    def digest_of_key(self, topic_id: TopicId, key: bytes) -> bytes | None:
        """Return the digest stored with an idempotency key in a partition led by this broker; None if unused."""
        for partition in self.replicas.of_topic(topic_id):
            digest = partition.digest_of(key)
            if digest is not None:
                return digest
        return None
