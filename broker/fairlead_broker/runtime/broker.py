"""The broker without its listeners: what `server` calls, and what `wiring` starts and stops.

Owns the data directory, the coordination client, the mirror, the partitions this broker leads and the tasks that
keep all of them going. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import msgspec

from fairlead_api.batch.validation import KEYED_EXTENSIONS, NO_EXTENSIONS, validate_produced
from fairlead_api.bodies.metadata import BrokerDescription
from fairlead_api.bodies.operations import PartitionDigest, ReplicaProgress
from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.configuration import ConfigEntry, ConfigInput
from fairlead_api.identifiers import (
    Acks,
    BrokerEpoch,
    BrokerId,
    Offset,
    PartitionIndex,
    Revision,
    TimestampUs,
    TopicId,
    TopicIdPartition,
)
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.operations import ClusterOperations
from fairlead_broker.coordination.cluster_values import cordoned_brokers, registered_states
from fairlead_broker.coordination.producer_registry import AllocatedProducer
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.log.segments.storage import PosixStorage, Storage
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.broker_parts import BrokerParts
from fairlead_broker.runtime.engine.budget import HeldAnswer
from fairlead_broker.runtime.groups.groups import Groups
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.lifecycle.cluster_entry import Advertised
from fairlead_broker.runtime.peer_serving.offset_lookup import Position, look_up
from fairlead_broker.runtime.peer_serving.peer_side import PeerSide
from fairlead_broker.runtime.requests import (
    AppendResult,
    FetchResult,
    FetchSpec,
    PartitionHandle,
    ProduceItem,
)
from fairlead_broker.runtime.topic_views import TopicView
from fairlead_broker.runtime.validation import limits_of
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Telemetry


class RuntimeState(Enum):
    """Where a broker stands in its life; it only goes forward."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class BrokerRuntime:
    """One broker of one cluster, in one life."""

    def __init__(
        self,
        settings: BrokerSettings,
        telemetry: Telemetry,
        clock: Clock,
        *,
        release: str,
        new_id: Callable[[], str],
        storage: Storage | None = None,
        coordination: Coordination | None = None,
    ) -> None:
        """`new_id` draws a version 4 UUID: chance enters here and nowhere below. `storage` stands for the disk.

        `coordination`: a client of a store that several brokers share, closed with this one.
        """
        self.release = release
        self.state = RuntimeState.STARTING
        self.cluster = settings.cluster
        self.broker_id = BrokerId(settings.id)
        self._settings = settings
        self._telemetry = telemetry
        self._clock = clock
        self._new_id = new_id
        self._storage = storage or PosixStorage()
        self._coordination = coordination
        self._advertised = Advertised(
            data=str(settings.advertise or settings.listen),
            peer=str(settings.peer_advertise or settings.peer_listen),
            ops=str(settings.ops_listen),
        )
        self._started: BrokerParts | None = None

    # -- life

    def set_advertised(
        self, *, data: str | None = None, peer: str | None = None, ops: str | None = None
    ) -> None:
        """Tell the addresses to register, each `host:port`; before `start`."""
        assert self._started is None, "addresses are registered at the start"
        before = self._advertised
        self._advertised = Advertised(data or before.data, peer or before.peer, ops or before.ops)

    async def start(self) -> None:
        """Enter the cluster, open and recover every partition, and be ready.

        Raises the errors of the directory (LogError) and of coordination (CoordinationError), each saying what to
        do; nothing is left open then.
        """
        parts = BrokerParts(
            self._settings, self._telemetry, self._clock, self._new_id, self._storage, self._coordination
        )
        try:
            await parts.open(self._advertised, self.release)
        except BaseException:
            await parts.close(clean=False)
            raise
        self._started = parts
        self.state = RuntimeState.RUNNING
        parts.log.info(
            "broker is ready",
            cluster=self.cluster,
            cluster_id=self.cluster_id,
            broker=self.broker_id,
            broker_epoch=self.broker_epoch,
            partitions=len(parts.partitions),
        )

    async def announce_stop(self) -> None:
        """Have others take over what this broker leads, serving meanwhile; returns at the latest after its limit."""
        if self.state is RuntimeState.RUNNING:
            await self._parts.departure.announce()
            await self._parts.groups.release_all()

    async def stop_answering(self) -> None:
        """Refuse new calls, answer long polls at once and everything else within the limit; idempotent.

        Syncing begins at the same time, so that little is left for the end.
        """
        if self.state is not RuntimeState.RUNNING:
            return
        self.state = RuntimeState.STOPPING
        self._parts.fetching.answer_all()
        self._parts.rounds.hurry()
        await self._parts.producing.stop(self._settings.limits.stop_answer_seconds)
        # Last: what waited for acks=all needed the followers.
        self._parts.replica_serving.answer_all()

    async def stop(self) -> None:
        """Stop answering, sync everything, write checkpoint and clean marker, leave the cluster; idempotent."""
        if self._started is None or self.state is RuntimeState.STOPPED:
            self.state = RuntimeState.STOPPED
            return
        await self.stop_answering()
        await self._started.close(clean=True)
        self.state = RuntimeState.STOPPED

    @property
    def ready(self) -> bool:
        """Whether the broker serves: started, not stopping, its directory healthy, its replicas caught up once."""
        return self.state is RuntimeState.RUNNING and self._parts.healthy and self._parts.partitions.in_line

    @property
    def failure(self) -> asyncio.Future[BaseException]:
        """Done with the exception of a task that failed in a way nobody expected: the program must end."""
        return self._parts.supervisor.failure

    @property
    def _parts(self) -> BrokerParts:
        if self._started is None:
            problem = ProblemError("shutting_down", "the broker is starting", retry_after_seconds=1.0)
            raise problem
        return self._started

    # -- the cluster

    @property
    def cluster_id(self) -> str:
        """Id of the cluster, drawn at its first start."""
        return self._parts.entry.cluster.cluster_id

    @property
    def feature_level(self) -> int:
        """What every broker of the cluster understands."""
        return self._parts.entry.cluster.feature_level

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """This life of the broker."""
        return self._parts.entry.life.epoch

    @property
    def registered_at(self) -> Revision:
        """Revision from which on this broker's registration stands as it does now."""
        return self._parts.entry.life.membership.revision

    async def hear_of(self, revision: Revision) -> None:
        """Return once this broker knows what stands at a revision. Raises CoordinationUnavailable if it stops."""
        await self._parts.entry.mirror.wait_for(revision)

    @property
    def controller(self) -> BrokerId | None:
        """Who holds the controller's term."""
        controller = self._parts.metadata.controller
        return controller.value.broker if controller else None

    @property
    def metadata_revision(self) -> int:
        """Names one state of everything that metadata answers tell; grows with each change."""
        return self._parts.metadata.metadata_revision

    @property
    def auto_create_topics(self) -> bool:
        """Whether producing to an unknown topic creates it."""
        return self._parts.configs.auto_create_topics

    @property
    def peer_side(self) -> PeerSide:
        """This broker among its peers."""
        return self._parts.peer_side

    async def move_progress(
        self, moves: Sequence[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, Sequence[ReplicaProgress]]:
        """What each added replica of these partitions has copied; asks other brokers, which may be away."""
        return await self._parts.move_progress.of(moves)

    @property
    def operations(self) -> ClusterOperations:
        """What operators ask of brokers and partitions; where this broker is the controller."""
        return self._parts.operations

    def brokers(self) -> list[BrokerDescription]:
        """Registered brokers by id."""
        metadata = self._parts.metadata
        cordoned, states = cordoned_brokers(metadata), registered_states(metadata)
        return [
            BrokerDescription(
                id=broker,
                address=registered.value.addresses.data,
                rack=registered.value.rack,
                state=states[broker].value,
                cordoned=broker in cordoned,
            )
            for broker, registered in sorted(metadata.brokers.items())
        ]

    def known_brokers(self) -> list[BrokerDescription]:
        """Brokers by id, those that are gone among them, and what the drained ones cannot be rid of."""
        operations, cordoned = self._parts.operations, cordoned_brokers(self._parts.metadata)
        gone = [
            BrokerDescription(id=broker, address=None, state="gone", cordoned=broker in cordoned)
            for broker in operations.gone()
        ]
        found = [
            msgspec.structs.replace(each, immovable=operations.immovable(BrokerId(each.id)))
            for each in (*self.brokers(), *gone)
        ]
        return sorted(found, key=lambda each: each.id)

    # -- configuration

    def cluster_config(self) -> dict[str, ConfigEntry]:
        """Every key that can be set on the cluster, with its value and the source."""
        return self._parts.configs.of_cluster()

    def broker_config(self, broker: BrokerId) -> dict[str, ConfigEntry]:
        """Every key that can be set on a broker, likewise. Raises `broker_not_found`."""
        self._parts.config_admin.check_broker(broker)
        return self._parts.configs.of_broker(broker)

    async def alter_cluster_config(self, patch: Mapping[str, ConfigInput] | None) -> dict[str, ConfigEntry]:
        """Change the cluster's configuration by a merge patch; returns it once it holds here."""
        parts = self._admitting()
        await parts.config_admin.alter_cluster(patch)
        await parts.topic_admin.follow_cluster_config()
        await parts.partitions.settled()
        return parts.configs.of_cluster()

    async def alter_broker_config(
        self, broker: BrokerId, patch: Mapping[str, ConfigInput] | None
    ) -> dict[str, ConfigEntry]:
        """Change a broker's configuration by a merge patch; returns it once it holds here."""
        parts = self._admitting()
        await parts.config_admin.alter_broker(broker, patch)
        await parts.partitions.settled()
        return parts.configs.of_broker(broker)

    # -- topics

    def topic(self, name: str) -> TopicView:
        """The topic of this name. Raises `topic_not_found`."""
        return self._parts.views.by_name(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicView:
        """The topic with this id. Raises `topic_not_found` or `topic_recreated`."""
        return self._parts.views.by_id(topic_id)

    def topics(self) -> list[TopicView]:
        """Every topic, by name."""
        return self._parts.views.all()

    async def create_topic(
        self, request: CreateTopicRequest, *, dry_run: bool = False
    ) -> tuple[TopicView, bool]:
        """Create a topic; returns it and whether it is new, once its partitions here take records."""
        parts = self._admitting()
        record, created = await parts.topic_admin.create(request, dry_run=dry_run)
        if dry_run:
            return parts.views.preview(request.name, record), created
        await parts.partitions.settled()
        return parts.views.by_name(request.name), created

    async def alter_topic(
        self, name: str, request: AlterTopicRequest, topic_id: TopicId | None = None
    ) -> TopicView:
        """Change configuration or grow; returns once it holds here."""
        parts = self._admitting()
        await parts.topic_admin.alter(name, request, topic_id)
        await parts.partitions.settled()
        return parts.views.by_name(name)

    async def delete_topic(self, name: str, topic_id: TopicId | None = None) -> None:
        """Delete a topic; returns once its name is free and its files here are gone."""
        parts = self._admitting()
        await parts.topic_admin.delete(name, topic_id)
        await parts.partitions.settled()
        await parts.partitions.files_removed()

    def _admitting(self) -> BrokerParts:
        parts = self._parts
        if self.state is not RuntimeState.RUNNING:
            raise refusals.shutting_down()
        return parts

    # -- records

    def partition(self, topic_id: TopicId, index: PartitionIndex) -> PartitionHandle:
        """A partition that this broker leads. Raises the problem that says why not."""
        return self._parts.partitions.find(topic_id, index)

    async def settled(self) -> None:
        """Return when this broker has every role that its mirror gives it by now."""
        await self._parts.partitions.settled()

    def check_produced(self, topic: TopicView, batch: memoryview, *, keyed: bool) -> None:
        """Raise what a leader would refuse in a batch for this topic, which need not exist yet. In any thread."""
        limits = limits_of(topic.config, self._settings.limits.decompressed_bytes_max)
        own = KEYED_EXTENSIONS if keyed else NO_EXTENSIONS
        validate_produced(batch, limits, self._clock.now_us(), own)

    async def produce(
        self, items: Sequence[ProduceItem], *, acks: Acks, timeout_seconds: float
    ) -> list[AppendResult | ProblemError]:
        """Validate and append each batch and wait for its acks; one answer an item, in order.

        Raises `shutting_down` for the whole call. Refusals before the append are definite; after it they carry the
        side effect `maybe`.
        """
        return await self._parts.producing.produce(items, acks=acks, timeout_seconds=timeout_seconds)

    async def allocate_producer(self, name: str | None) -> AllocatedProducer:
        """A new producer id, or the next epoch of a named producer. Raises like `ProducerRegistry.allocate`."""
        return await self._admitting().producer_registry.allocate(name)

    def digest_of_key(self, view: TopicView, key: bytes) -> bytes | None:
        """Digest of the request that used an idempotency key in any partition of the topic led here, if one did."""
        for partition in self._parts.partitions.of_topic(view.topic_id):
            digest = partition.digest_of(key)
            if digest is not None:
                return digest
        return None

    async def fetch(
        self,
        request: FetchSpec,
        *,
        disconnected: asyncio.Event | None = None,
        held: HeldAnswer | None = None,
    ) -> list[FetchResult | ProblemError]:
        """Committed batches of each partition, waiting for `min_bytes` up to the wait; one answer a partition.

        `disconnected` ends the wait when the caller is gone. `held` (from `hold_answer`) counts what was read until the
        caller releases it. Raises `shutting_down` or `overloaded` for the whole call.
        """
        parts = self._parts
        if held is not None:
            return await parts.fetching.fetch(request, held, disconnected=disconnected)
        held = parts.answers.hold()
        try:
            return await parts.fetching.fetch(request, held, disconnected=disconnected)
        finally:
            held.release()

    @property
    def groups(self) -> Groups:
        """Consumer groups: those that this broker coordinates, and who has the others."""
        return self._admitting().groups

    def hold_answer(self) -> HeldAnswer:
        """Begin to count the bytes of an answer; to be released by the caller."""
        return self._parts.answers.hold()

    async def offset_lookup(
        self, handle: PartitionHandle, position: Position
    ) -> tuple[Offset | None, TimestampUs | None]:
        """The offset at `earliest`, `latest` or a time (µs); (None, None) when no record is that late."""
        assert isinstance(handle, LeaderReplica), "handles come from this runtime"
        return await look_up(handle, position, self._parts.disk)

    async def delete_records(self, handle: PartitionHandle, offset: Offset | None) -> Offset:
        """Delete a partition's records below an offset, None for all committed ones; returns where it begins now.

        Durable on return. Raises `offset_out_of_range` above the high watermark, `offset_not_available` while that is
        unknown, `disk_full`, `storage_failed`.
        """
        assert isinstance(handle, LeaderReplica), "handles come from this runtime"
        return await self._admitting().records_deletion.delete(handle, offset)

    async def compare_replicas(
        self, handle: PartitionHandle, first_offset: Offset | None, end_offset: Offset | None
    ) -> PartitionDigest:
        """Compare every replica's copy of a range, by default of all that is committed; raises like `Digests`."""
        assert isinstance(handle, LeaderReplica), "handles come from this runtime"
        return await self._parts.digests.compare(handle, first_offset, end_offset)

    async def accept_damage(
        self, handle: PartitionHandle, first_offset: Offset, next_good_offset: Offset
    ) -> None:
        """Accept that the records of a damaged range are lost; readers pass it from now on, durably.

        Raises `conflict` unless exactly this range is damaged, `disk_full`, `storage_failed`.
        """
        assert isinstance(handle, LeaderReplica), "handles come from this runtime"
        await self._admitting().damage_acceptance.accept(handle, first_offset, next_good_offset)
