"""Start and end of this broker's roles for a log: leader or follower.

Used by `replicas`, which decides when a role changes. A role starts from the current content of the log. Ending a role
takes effect at once, but the next role waits until the disk work of the ended role is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from fairlead_api.identifiers import PartitionIndex
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.registry.metadata import ClusterMetadata, Versioned
from fairlead_broker.registry.quorum import in_sync
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.replication import (
    LeaderMachine,
    PartitionLeader,
    QuorumLeader,
    ReplicaProgress,
    registered_brokers,
)
from fairlead_broker.runtime.engine.supervisor import Supervisor
from fairlead_broker.runtime.following.follower_replica import FollowerReplica
from fairlead_broker.runtime.following.replica_fetching import ReplicaFetching
from fairlead_broker.runtime.hosting.hosted_log import HostedLog
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.leading.shared_parts import SharedParts
from fairlead_broker.runtime.meters import BrokerMeters
from fairlead_broker.runtime.roles import Following
from fairlead_broker.runtime.topic_views import TopicView

Record: TypeAlias = Versioned[PartitionRecord]


class RoleChanges:
    """Creates leader and follower replicas, and ends their roles."""

    def __init__(
        self,
        incarnation: Incarnation,
        metadata: ClusterMetadata,
        shared: SharedParts,
        fetching: ReplicaFetching,
        meters: BrokerMeters,
        supervisor: Supervisor,
        lag_seconds: Callable[[], float],
    ) -> None:
        """`lag_seconds` returns the maximum lag of an in-sync follower in seconds.

        `lag_seconds` is called at the start of every leadership.
        """
        self._incarnation = incarnation
        self._metadata = metadata
        self._shared = shared
        self._fetching = fetching
        self._meters = meters
        self._supervisor = supervisor
        self.spawn: Final = supervisor.spawn
        """Function that starts a task of the broker."""
        self._lag_seconds = lag_seconds

    def lead(
        self, hosted: HostedLog, view: TopicView, record: Record, failed: Callable[[Exception], None]
    ) -> LeaderReplica:
        """Make this broker the leader of a partition; `failed` gets an unexpected error in the partition's task."""
        key, log = hosted.key, hosted.log
        leader = self._machine(hosted, view, record)
        meters = self._meters.topic(view.name)
        partition = hosted.led = LeaderReplica(view.name, key, view.config, log, leader, self._shared, meters)
        partition.topic_changed(view.mirror, view.handed_over)
        partition.start_leading()
        hosted.task = self._supervisor.spawn(partition.run(failed), f"partition {view.name}-{key.partition}")
        # The sync rounds no longer track the previous role, so the log's unsynced records are passed to them again.
        partition.sync.sync_at_once(log.end_offset)
        self._meters.watch_partition(
            view.name,
            key.partition,
            lambda: partition.log_start_offset,
            lambda: partition.log_end_offset,
            lambda: partition.size_bytes,
            lambda: sum(not damage.accepted for damage in log.damaged),
        )
        leadership = partition.leadership
        self._meters.watch_leadership(
            view.name,
            key.partition,
            lambda: leadership.machine.leader_epoch,
            lambda: leadership.machine.in_sync_count,
            lambda: leadership.replica_lag,
        )
        if isinstance(leader, QuorumLeader):
            self._meters.watch_quorum(
                view.name,
                key.partition,
                lambda: len(in_sync(leader.record)),
                lambda: leader.in_sync_count,
                lambda: leader.min_isr,
                lambda: leader.end_offset - leader.readable_limit,
            )
        return partition

    def _machine(self, hosted: HostedLog, view: TopicView, record: Record) -> LeaderMachine:
        """Return the state machine for the replication mode of the partition."""
        log, now, lag_seconds = hosted.log, self._shared.clock.monotonic(), self._lag_seconds()
        own, registered = self._incarnation, registered_brokers(self._metadata.brokers)
        progress = ReplicaProgress(log.end_offset, log.synced_offset)
        if record.value.quorum is not None:
            return QuorumLeader(
                own.broker,
                own.epoch,
                record.value,
                record.mod_revision,
                registered,
                progress,
                log.checkpoint_high_watermark,
                log.log_start_offset,
                now,
                lag_seconds,
                view.config.quorum_write,
            )
        return PartitionLeader(
            own.broker,
            own.epoch,
            record.value,
            record.mod_revision,
            registered,
            progress,
            log.checkpoint_high_watermark,
            log.log_start_offset,
            now,
            lag_seconds,
        )

    def follow(self, hosted: HostedLog, view: TopicView, record: Record, following: Following) -> None:
        """Make this broker follow the partition's leader."""
        partition = hosted.followed = FollowerReplica(
            view.name,
            hosted.key,
            view.config,
            hosted.log,
            following,
            record,
            self._shared,
            self._fetching.report,
        )
        partition.sync.sync_at_once(hosted.log.end_offset)
        self._fetching.follow(partition)

    def end(
        self,
        hosted: HostedLog,
        topic: str,
        refusal: Callable[[str, PartitionIndex, SideEffect], ProblemError],
    ) -> None:
        """End this broker's role for a log at once. `no_role` waits until no disk work of the role uses the log."""
        led, followed, task = hosted.led, hosted.followed, hosted.task
        hosted.led = hosted.followed = hosted.task = None
        if led is not None and task is not None:
            led.close(partial(refusal, topic, hosted.key.partition))
            self._meters.forget_partition(topic, hosted.key.partition)
            self._meters.forget_leadership(topic, hosted.key.partition)
            hosted.left = partial(self._led_no_more, led, task)
        elif followed is not None:
            self._fetching.forget(followed)
            followed.end()
            hosted.left = partial(self._followed_no_more, followed)

    async def _led_no_more(self, partition: LeaderReplica, task: asyncio.Task[None]) -> None:
        await asyncio.wait([task])
        await self._shared.rounds.forget(partition)

    async def _followed_no_more(self, partition: FollowerReplica) -> None:
        await partition.idle()
        await self._shared.rounds.forget(partition)
