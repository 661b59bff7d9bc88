"""Leader and follower replicas of this broker, kept consistent with the mirrored partition records.

One task compares partition records and replicas. The task opens the logs of the partitions that the records assign to
this broker, starts the assigned roles, and closes logs that are no longer assigned. A folder is deleted only when the
topic's tombstone or the partition record requires it. The comparison reads the current state rather than events, so
repeated and late events are harmless. The log stays open while roles change. Recovery and the removal of files can take
a long time, so they run in separate tasks and do not delay the roles of other partitions. This code is in one file
because comparing, opening and closing share one table of replicas and of the tasks in progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeAlias

from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicIdPartition
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.log import LogDirectory, LogError, PartitionLog, StaleLeaderEpoch
from fairlead_broker.registry.isr import taken_out
from fairlead_broker.registry.metadata import (
    BrokerChange,
    Change,
    ClusterMetadata,
    ConfigChange,
    DeletedTopicChange,
    PartitionChange,
    TopicChange,
    Versioned,
)
from fairlead_broker.registry.records import PartitionRecord, TopicState
from fairlead_broker.replication import registered_brokers
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.containment import contained
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.supervisor import SideWork
from fairlead_broker.runtime.following.follower_replica import FollowerReplica
from fairlead_broker.runtime.following.replica_fetching import ReplicaFetching
from fairlead_broker.runtime.hosting.hosted_log import HostedLog, drop_damaged, no_role
from fairlead_broker.runtime.hosting.partition_logs import PartitionLogs
from fairlead_broker.runtime.hosting.refused_partitions import OPEN_AGAIN_SECONDS, RefusedPartitions
from fairlead_broker.runtime.hosting.role_changes import RoleChanges
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.meters import BrokerMeters
from fairlead_broker.runtime.roles import Roles
from fairlead_broker.runtime.topic_views import TopicView, TopicViews
from fairlead_broker.telemetry import Log

Record: TypeAlias = Versioned[PartitionRecord]
Wait: TypeAlias = tuple[TopicId, Callable[[], Awaitable[object]]]
"""Topic, and a function that waits for work on its replicas. A stopping broker may drop functions without calling them.
"""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Partition whose log must be opened or whose role must change."""

    key: TopicIdPartition
    view: TopicView
    record: Record


class Replicas:
    """Registry that opens, finds and closes replicas, and iterates over the leader replicas."""

    def __init__(
        self,
        incarnation: Incarnation,
        metadata: ClusterMetadata,
        views: TopicViews,
        directory: LogDirectory,
        opening: DiskPool,
        changes: RoleChanges,
        fetching: ReplicaFetching,
        meters: BrokerMeters,
        log: Log,
    ) -> None:
        """`opening`: pool of threads that open, recover and delete logs."""
        self._incarnation = incarnation
        self._roles = Roles(incarnation, directory.identity.directory_id)
        self._metadata = metadata
        self._views = views
        self._removals = SideWork(changes.spawn)
        self._logs = PartitionLogs(directory, opening, self._removals, log)
        self._openings = SideWork(changes.spawn)
        self._being_opened: set[TopicIdPartition] = set()
        self._opened: list[_Wanted] = []
        """Partitions whose logs were opened since the last comparison and for which no role has started yet."""
        self._opening = opening
        self._changes = changes
        self._fetching = fetching
        self._meters = meters
        self._log = log
        self._hosted: dict[TopicId, dict[PartitionIndex, HostedLog]] = {}
        self._refused = RefusedPartitions(self._look_at, log)
        self._dirty: set[TopicId] = set()
        self._brokers_dirty = False
        self._wake = asyncio.Event()
        self._settled: list[asyncio.Future[None]] = []
        self._was_in_line = False
        self._directory = directory
        self._giving_up: set[TopicIdPartition] = set()
        meters.watch_replication(
            lambda: sum(1 for _ in self),
            lambda: sum(partition.leadership.under_replicated for partition in self),
            lambda: sum(not partition.leadership.machine.enough_in_sync for partition in self),
        )
        meters.watch_held(lambda: sum(partition.held_batches for partition in self))
        meters.watch_distrusted(lambda: len(self._refused), lambda: len(directory.identity.quarantined))

    # -- look-ups

    def __iter__(self) -> Iterator[LeaderReplica]:
        return (hosted.led for hosted in self._all() if hosted.led is not None)

    def __len__(self) -> int:
        return sum(map(len, self._hosted.values()))

    def followed(self) -> Iterator[FollowerReplica]:
        """Return every follower replica."""
        return (hosted.followed for hosted in self._all() if hosted.followed is not None)

    def both(self) -> Iterator[LeaderReplica | FollowerReplica]:
        """Return every leader and follower replica."""
        return chain(self, self.followed())

    def of_topic(self, topic_id: TopicId) -> Iterator[LeaderReplica]:
        """Return the leader replicas of one topic."""
        hosted = list(self._hosted.get(topic_id, {}).values())
        return (each.led for each in hosted if each.led is not None)

    def find(self, topic_id: TopicId, index: PartitionIndex) -> LeaderReplica:
        """Return a leader replica. Raises the problem that explains why this broker does not lead the partition."""
        try:
            led = self._hosted[topic_id][index].led
        except KeyError:
            led = None
        if led is None:
            key = TopicIdPartition(topic_id, index)
            raise self._refused.why(key) or self._views.why_not_led(topic_id, index, self._roles.leads)
        return led

    def log_of(self, key: TopicIdPartition) -> PartitionLog | None:
        """Return the open log of a partition in any role of this broker; None if no log is open."""
        return None if (hosted := self._find(key)) is None else hosted.log

    def log_without_role(self, key: TopicIdPartition, record: PartitionRecord) -> PartitionLog | None:
        """Return the open, trusted log of a replica that has no role; None for any other replica."""
        hosted = self._find(key)
        if hosted is None or hosted.role is not None or not self._may_have_role(hosted, record):
            return None
        return hosted.log

    @property
    def in_line(self) -> bool:
        """Whether every replica on this broker has led or been caught up at least once since the start."""
        if not self._was_in_line:
            self._was_in_line = not self._openings and all(
                hosted.serves for hosted in self._all() if hosted.key not in self._refused
            )
        return self._was_in_line

    def _find(self, key: TopicIdPartition) -> HostedLog | None:
        return self._hosted.get(key.topic_id, {}).get(key.partition)

    def _all(self) -> Iterator[HostedLog]:
        return (hosted for topic in list(self._hosted.values()) for hosted in list(topic.values()))

    # -- epochs

    def overtaken(self) -> list[tuple[TopicIdPartition, LeaderEpoch]]:
        """Return partitions that this broker should lead in an epoch that is not higher than the epoch of their log.

        Each partition is returned with the epoch of its log.
        """
        return [
            (hosted.key, hosted.log.leader_epochs[-1].epoch)
            for hosted in self._all()
            if hosted.role is None
            and hosted.log.leader_epochs
            and hosted.log.leader_epochs[-1].epoch != hosted.failed_epoch
            and self._roles.leads(hosted.record.value)
            and hosted.log.leader_epochs[-1].epoch >= hosted.record.value.leader_epoch
        ]

    # -- damage

    def damaged(self) -> list[TopicIdPartition]:
        """Return the partitions with unreadable or missing records whose loss no operator has accepted."""
        return [hosted.key for hosted in self._all() if hosted.damaged]

    async def drop_damaged(self, key: TopicIdPartition) -> bool:
        """Truncate a log at the start of its damage; the removed records are fetched again.

        The partition record must not list the replica in the isr. Returns False if the disk refused the truncation, in
        which case the replica has no role until a truncation succeeds.
        """
        hosted = self._find(key)
        if hosted is None:
            return True
        self._giving_up.add(key)
        try:
            role = hosted.role
            self._changes.end(hosted, role.topic if role else "", refusals.leader_changed)
            await no_role(hosted)
            if self._find(key) is not hosted:
                return True  # The replica was closed while its role ended.
            await self._opening.run(drop_damaged, hosted.log)
            hosted.distrusted = False
        except LogError as error:
            self._log.error("damaged copy not truncated", partition=str(key), reason=str(error))
            return False
        else:
            return True
        finally:
            self._giving_up.discard(key)
            self._look_at(key.topic_id)

    async def cut(
        self,
        key: TopicIdPartition,
        offset: Offset,
        raise_epoch: Callable[[], Awaitable[None]],
        *,
        keeps_tail: bool,
    ) -> None:
        """Cut the log of a mirror that this broker leads, and lead it again in the epoch of `raise_epoch` (rule L13).

        Followers compare their logs with a leader only when its epoch begins, so the cut log needs a new epoch.
        `keeps_tail`: whether the records that are cut are first written to a file. Raises `LogError`, after which the
        replica leads again with its previous log.
        """
        hosted = self._find(key)
        if hosted is None:
            return
        self._giving_up.add(key)
        try:
            role = hosted.role
            self._changes.end(hosted, role.topic if role else "", refusals.leader_changed)
            await no_role(hosted)
            if self._find(key) is hosted:
                if keeps_tail and (
                    path := await self._opening.run(self._directory.keep_tail, key, hosted.log, offset)
                ):
                    self._log.warning(
                        "records kept in a file", partition=str(key), offset=offset, path=str(path)
                    )
                is_below = offset < hosted.log.log_start_offset
                await self._opening.run(hosted.log.restart_at if is_below else hosted.log.truncate_to, offset)
                await raise_epoch()
        finally:
            self._giving_up.discard(key)
            self._look_at(key.topic_id)

    def _may_have_role(self, hosted: HostedLog, record: PartitionRecord) -> bool:
        """Return whether a replica may have a role: it is not quarantined and not about to be truncated for damage."""
        if hosted.key in self._giving_up or hosted.key in self._directory.identity.quarantined:
            return False
        return not hosted.damaged or taken_out(record, self._incarnation.broker) is None

    # -- changes

    def changed(self, change: Change) -> None:
        """Record a change in the mirror. The call must be cheap, because it is made for every change."""
        match change:
            case TopicChange(before=before, after=after):
                self._dirty.update(each.value.topic_id for each in (before, after) if each is not None)
            case PartitionChange(topic_id=topic_id) | DeletedTopicChange(topic_id=topic_id):
                self._dirty.add(topic_id)
            case ConfigChange():
                self._dirty.update(self._hosted)
            case BrokerChange():
                self._brokers_dirty = True
            case _:
                return
        self._wake.set()

    def _look_at(self, topic_id: TopicId) -> None:
        self._dirty.add(topic_id)
        self._wake.set()

    def incarnation_changed(self) -> None:
        """Record that this broker has a new incarnation, which ends the roles of the previous one."""
        self._dirty.update(self._hosted)
        self._wake.set()

    async def open_all(self) -> None:
        """Open all logs and start all roles once, when the broker starts."""
        topics = [topic.value.topic_id for topic in self._metadata.topics.values()]
        self._dirty.update(topics)
        self._dirty.update(self._metadata.deleted_topics)
        await self._opening.run(self._directory.forget_topics, set(self._metadata.deleted_topics))
        await self._bring_in_line()
        while self._openings:
            await self._openings.over()
            await self._bring_in_line()
        await self._delete_left_folders()

    async def _delete_left_folders(self) -> None:
        """Delete folders of partitions that moved to other brokers while this broker was stopped."""
        for key in self._directory.found:
            record = self._metadata.partitions(key.topic_id).get(key.partition)
            if record is not None and self._roles.own_replica(record.value) is None:
                with suppress(LogError), contained(self._log, "deletion of leftover folders", key.topic_id):
                    await self._logs.delete(key)

    async def run(self) -> None:
        """Compare partition records and replicas after every change, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._settled = self._settled, []
            await self._bring_in_line()
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)

    async def settled(self) -> None:
        """Wait until all replicas are opened or closed as the current mirror requires."""
        await self._looked_at()
        while self._openings:
            await self._openings.over()
            await self._looked_at()

    async def files_removed(self) -> None:
        """Wait until the files of all deleted partitions are removed."""
        await self._removals.over()

    async def compared(self) -> None:
        """Wait until all roles that the current mirror no longer assigns have ended, including their disk work."""
        await self._looked_at()

    async def _looked_at(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._settled.append(waiter)
        self._wake.set()
        await waiter

    async def close_all(self) -> None:
        """Stop every partition; waiting calls fail with `shutting_down`. The logs stay open for the last sync."""
        tasks = []
        for hosted in self._all():
            if hosted.led is not None and hosted.task is not None:
                hosted.led.refuse_writes(refusals.shutting_down)
                hosted.led.wake_polls()
                tasks.append(hosted.task)
        if tasks:
            # The tasks are not awaited one by one: a failure cancels the other tasks, and awaiting a cancelled task
            # would raise `CancelledError` here.
            await asyncio.wait(tasks)
        for followed in list(self.followed()):
            await followed.close()

    def storage_failed(self) -> None:
        """Refuse all writes because the directory has failed. Reads continue."""
        for partition in self:
            partition.storage_failed()

    # -- comparison of partition records and replicas

    async def _bring_in_line(self) -> None:
        while self._dirty or self._brokers_dirty or self._opened:
            if self._brokers_dirty:
                self._notify_leaders()
            wanted, self._opened = self._opened, []
            topics, self._dirty = self._dirty, set()
            waits: list[Wait] = []
            failed: set[TopicId] = set()
            for topic_id in topics:
                view = self._view(topic_id)
                with self._contained(topic_id, failed):
                    if view is None:
                        await self._close_topic(topic_id)
                    else:
                        self._compare(view, wanted, waits)
            for topic_id, wait in waits:
                with self._contained(topic_id, failed):
                    await wait()
            for wish in wanted:
                # After a failure, an earlier role of a partition may still use its log.
                if wish.key.topic_id in failed:
                    continue
                with self._contained(wish.key.topic_id, failed):
                    if self._find(wish.key) is None:
                        self._begin_opening(wish)
                    else:
                        self._take_role(wish)
            self._fetching.mirror_changed()

    @contextmanager
    def _contained(self, topic_id: TopicId, failed: set[TopicId]) -> Iterator[None]:
        """Skip a topic whose comparison fails in this round, and compare the topic again later."""
        try:
            with contained(self._log, "comparison of a topic", topic_id):
                yield
        except LogError:
            failed.add(topic_id)
            asyncio.get_running_loop().call_later(OPEN_AGAIN_SECONDS, self._look_at, topic_id)

    def _notify_leaders(self) -> None:
        self._brokers_dirty = False
        registered = registered_brokers(self._metadata.brokers)
        for partition in self:
            partition.leadership.brokers_changed(registered)
        self._fetching.mirror_changed()

    def _view(self, topic_id: TopicId) -> TopicView | None:
        topic = self._metadata.topic_by_id(topic_id)
        if topic is None or topic.value.state is TopicState.DELETING:
            return None
        return self._views.by_id(topic_id)

    def _compare(self, view: TopicView, wanted: list[_Wanted], waits: list[Wait]) -> None:
        """Find the replicas of a topic that must be opened or change their role; other replicas are closed or updated.

        The method does not wait for roles to end, so that many roles can end in parallel. `waits` receives
        the work that must be done before a log is opened.
        """
        records = self._metadata.partitions(view.topic_id)
        for index, hosted in list(self._hosted.get(view.topic_id, {}).items()):
            record = records.get(index)
            if record is None or self._roles.own_replica(record.value) is None:
                self._changes.end(hosted, view.name, refusals.leader_changed)
                waits.append((view.topic_id, partial(self._let_go, hosted, removed=record is not None)))
        for index, record in records.items():
            key = TopicIdPartition(view.topic_id, index)
            if self._roles.own_replica(record.value) is None:
                self._refused.accept(key)
                continue
            wish = _Wanted(key, view, record)
            kept = self._find(wish.key)
            if kept is None:
                wanted.append(wish)
            elif self._keeps_role(kept, record.value):
                waits += [(view.topic_id, each) for each in self._pass_record(kept, view, record)]
            else:
                wanted.append(wish)
                self._changes.end(kept, view.name, refusals.leader_changed)
                waits.append((view.topic_id, partial(no_role, kept)))

    def _keeps_role(self, hosted: HostedLog, record: PartitionRecord) -> bool:
        if hosted.led is not None:
            return self._roles.leads(record) and record.leader_epoch == hosted.led.leader_epoch
        if hosted.key in self._refused and record.leader_epoch == hosted.record.value.leader_epoch:
            return True
        followed = hosted.followed.following if hosted.followed else None
        return not self._roles.leads(record) and self._roles.following(record) == followed

    def _pass_record(
        self, hosted: HostedLog, view: TopicView, record: Record
    ) -> list[Callable[[], Awaitable[object]]]:
        """Pass the new partition record to a replica that keeps its role."""
        if record.mod_revision != hosted.record.mod_revision:
            hosted.record = record
            if hosted.led is not None:
                hosted.led.record_changed(record.value, record.mod_revision)
            if hosted.followed is not None:
                hosted.followed.record_changed(record)
        if hosted.led is not None:
            hosted.led.topic_changed(view.mirror, view.handed_over)
        role = hosted.role
        if role is None or role.config == view.config:
            return []
        role.change_config(view.config)
        updated = self._opening.submit(hosted.log.update_config, view.config)
        return [lambda: updated]

    # -- opening

    def _begin_opening(self, wish: _Wanted) -> None:
        """Start opening a log in a separate task, unless the log is already being opened."""
        if wish.key not in self._being_opened:
            self._being_opened.add(wish.key)
            self._openings.begin(self._open(wish), f"opening of {wish.key}")

    async def _open(self, wish: _Wanted) -> None:
        key, view, opened = wish.key, wish.view, False
        try:
            with contained(self._log, "opening of a log", key):
                log = await self._opening.run(self._logs.open, key, view.name, view.config)
        except LogError as error:
            self._refused.refuse(key, view.name, error)
        else:
            hosted = HostedLog(key, log, wish.record, distrusted=log.recovery_report.dropped_good)
            self._hosted.setdefault(key.topic_id, {})[key.partition] = hosted
            self._refused.accept(key)
            opened = True
        finally:
            self._being_opened.discard(key)
        now = self._view(key.topic_id)
        if now is not view or not self._is_newest(wish):
            self._dirty.add(key.topic_id)
        elif opened:
            self._opened.append(wish)
        self._wake.set()

    def _take_role(self, wish: _Wanted) -> None:
        hosted = self._find(wish.key)
        if hosted is None or hosted.role is not None or not self._is_newest(wish):
            return
        hosted.record = wish.record
        if not self._may_have_role(hosted, wish.record.value):
            return
        if hosted.log.config != wish.view.config:
            # No disk work uses the log, so the call does not block.
            hosted.log.update_config(wish.view.config)
        # A log that is not trusted gets a role only if no other replica has its records: the log is then the best copy.
        hosted.distrusted = False
        self._refused.accept(wish.key)
        record, log = wish.record.value, hosted.log
        following = self._roles.following(record)
        begun = log.leader_epochs[-1].epoch if log.leader_epochs else None
        last = log.last_epoch
        # A restored coordination store can issue epochs again. A leader in a reissued epoch would mix two histories,
        # and a follower in an older epoch must not truncate records of a later epoch (rule 3.8).
        if self._roles.leads(record):
            if begun is not None and begun >= record.leader_epoch and begun != hosted.failed_epoch:
                self._refused.refuse(
                    wish.key, wish.view.name, StaleLeaderEpoch(log.folder, record.leader_epoch, begun)
                )
            else:
                led = self._changes.lead(
                    hosted, wish.view, wish.record, partial(self._leading_failed, hosted)
                )
                if self._directory.failure is not None:
                    led.storage_failed()
        elif following is not None:
            if last is not None and last > record.leader_epoch:
                self._refused.refuse(
                    wish.key, wish.view.name, StaleLeaderEpoch(log.folder, record.leader_epoch, last)
                )
            else:
                self._changes.follow(hosted, wish.view, wish.record, following)

    def _leading_failed(self, hosted: HostedLog, error: Exception) -> None:
        """Restart a leadership in the same epoch, from the log, after an unexpected error in its task."""
        self._log.error("leadership failed", partition=str(hosted.key), reason=str(error), exc_info=error)
        self._openings.begin(self._lead_again(hosted), f"new leader replica of {hosted.key}")

    async def _lead_again(self, hosted: HostedLog) -> None:
        role = hosted.role
        if hosted.led is not None:
            hosted.failed_epoch = hosted.led.leader_epoch
        self._changes.end(hosted, role.topic if role else "", refusals.leader_changed)
        await no_role(hosted)
        self._look_at(hosted.key.topic_id)

    def _is_newest(self, wish: _Wanted) -> bool:
        """Return whether the mirror still has this version of the partition record.

        A broker that removed its replica from the partition record must not lead or follow according to the earlier
        version, because its log was truncated afterwards. A newer version of the partition record triggers another
        comparison.
        """
        standing = self._metadata.partitions(wish.key.topic_id).get(wish.key.partition)
        return standing is not None and standing.mod_revision == wish.record.mod_revision

    # -- closing

    async def _let_go(self, hosted: HostedLog, *, removed: bool) -> None:
        """Drop a partition once its role has ended.

        `removed`: the partition record no longer lists the replica, so its files are deleted.
        """
        await no_role(hosted)
        self._forget(hosted)
        if removed:
            await self._logs.delete(hosted.key)
        else:
            self._logs.keep(hosted.key, hosted.log)

    def _forget(self, hosted: HostedLog) -> None:
        topic = self._hosted[hosted.key.topic_id]
        del topic[hosted.key.partition]
        if not topic:
            del self._hosted[hosted.key.topic_id]

    async def _close_topic(self, topic_id: TopicId) -> None:
        name = ""
        for hosted in list(self._hosted.get(topic_id, {}).values()):
            role = hosted.role
            name = role.topic if role is not None else name
            self._changes.end(hosted, name, _topic_gone)
            await no_role(hosted)
            self._forget(hosted)
            self._logs.keep(hosted.key, hosted.log)
        if name:
            self._meters.forget_topic(name)
        self._refused.forget_topic(topic_id)
        if any(key.topic_id == topic_id for key in self._being_opened):
            return  # The topic is compared again when the opening completes.
        if topic_id in self._metadata.deleted_topics:
            await self._logs.delete_topic(topic_id)


def _topic_gone(topic: str, index: PartitionIndex, effect: SideEffect) -> ProblemError:
    del index
    return refusals.topic_not_found(topic, effect)
