"""A broker: a sequence of processes on one disk, and the partitions that it leads and follows.

A process registers, checks whether its disk is an old copy, writes its broker epoch into the identity file, and then
leads or follows as the partition records require. A broker leaves ISR and ELR before it drops distrusted bytes
(protocol section 2). A failed sync stops all writes to the directory until a restart (trap 22 in
docs/explanation/known-traps.md), because unsynced bytes may be lost even if they can still be read.

This module is a twin of `fairlead_broker.runtime`: a world of real brokers on virtual time takes seconds, a world of
these twins milliseconds, and it takes many worlds to find most dropped rules. The module is a single file because each
start, lease and disk fault changes the roles of all partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    Revision,
    TopicId,
)
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.vacancies import Promise
from fairlead_broker.registry.generations import generation_in
from fairlead_broker.registry.isr import taken_out
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.quorum import relied_on
from fairlead_broker.registry.records import (
    BrokerRegistration,
    BrokerState,
    Directory,
    PartitionRecord,
    QuarantinedReplica,
    Replica,
)
from fairlead_broker.replication.leader_messages import DirectoryFailed, FollowerReport
from fairlead_broker.replication.registered_broker import RegisteredBroker, registered_brokers
from partitions.controlling import Controlling
from partitions.detecting import Detecting
from partitions.disk import Disk, Log
from partitions.following import Following
from partitions.leading import Leading
from partitions.messages import FetchAnswer, FetchRefused
from simulator.broker import AGAIN_SECONDS, REGISTRATION, own_registration
from simulator.broker import Broker as Frame
from simulator.store import Compare, Item, Key, Transaction, partition_key

if TYPE_CHECKING:
    from partitions.world import World

TOPIC = TopicId("11111111-1111-4111-8111-111111111111")
LAZY_SYNC_SECONDS = 2.0


class Broker(Frame):
    """A broker of the cluster."""

    world: World

    def __init__(self, world: World, number: int, disk: Disk) -> None:
        """Create a broker that is not running."""
        super().__init__(world, number)
        self.disk = disk
        self.ready = False
        """Whether the broker is registered and its identity file has the broker epoch."""
        self.failed = False
        """Whether the directory accepts no writes until a restart."""
        self.full_until = 0.0
        """Time until which the volume is full."""
        self.roles: dict[int, Leading | Following] = {}
        self.damaged: dict[int, int] = {}
        """Partitions, each with the offset from which this process distrusts its bytes."""
        self.controlling = Controlling(self)
        self.detecting = Detecting(self)
        self.listens = False
        """Whether the process listens on its port, which it does from its first incarnation on."""
        self._kept = False
        self._registered_brokers: dict[BrokerId, RegisteredBroker] | None = None
        self._syncing: set[int] = set()
        self._taking_out: set[int] = set()
        self._own_write: dict[int, int] = {}

    # -- processes

    def start(self) -> None:
        """Start a process on the disk."""
        super().start()
        self.ready = False
        for table in (self.roles, self._syncing, self._taking_out, self._own_write, self.damaged):
            table.clear()
        self.controlling = Controlling(self)
        self.detecting = Detecting(self)
        self._recover()
        kept = self.disk.clean_marker or self.disk.boot == self.world.boots[self.number]
        if kept:
            # The boot number is written when the marker is removed, because no bytes are lost if the process is killed
            # before this incarnation is stored.
            self.disk.boot = self.world.boots[self.number]
        self.remove_clean_marker()
        self.register(kept)

    def _recover(self) -> None:
        """Read the logs at startup, and find torn tails and the losses of a failed sync."""
        self.failed = False
        for partition, log in self.disk.logs.items():
            if not self.disk.clean_marker:
                log.forget_high_watermark(self.world.schedule.rng)
            if log.doubtful is not None:
                log.synced, log.doubtful = min(log.synced, log.doubtful), None
                self.world.judge.counts["cells lost"] += log.lose_unsynced(self.world.schedule.rng)
            if log.torn_at is not None:
                self.damaged[partition] = log.torn_at

    def remove_clean_marker(self) -> None:
        """Remove the marker of a clean stop, so that a later crash is not mistaken for a clean stop."""
        self.disk.clean_marker = False

    def kill(self) -> None:
        """End the process at once, and leave written bytes in the page cache."""
        if not self.alive:
            return
        super().kill()
        self.ready = self.listens = False
        for role in self.roles.values():
            role.closed = True
        self.roles.clear()

    def stop(self) -> None:
        """Stop cleanly: hand over leaderships, sync every log, write the marker, and leave."""
        if not self.ready or self.stopping:
            return
        self.stopping = True
        self.change_registration(
            lambda _: self.after(0.1, self._finish_stop, self.world.now + 1.5), state=BrokerState.STOPPING
        )

    def _finish_stop(self, until: float) -> None:
        if self.world.now < until and any(isinstance(role, Leading) for role in self.roles.values()):
            self.after(0.1, self._finish_stop, until)
            return
        for partition in list(self.roles):
            self._close(partition)
        if not self.failed:
            self.sync_everything()
            self.disk.clean_marker = True
        self.kill()
        self.world.store.revoke(self.lease)
        self.world.faults.stopped(self)

    def sync_everything(self) -> None:
        """Sync every log before the clean marker is written (rule 4.10)."""
        for log in self.disk.logs.values():
            log.synced = log.end

    # -- registration

    def registration(self, kept: bool) -> BrokerRegistration:
        """Return the registration; `kept` means that all bytes written before this start still exist."""
        disk = self.disk
        self._directories = self._own_directories()
        return msgspec.structs.replace(
            REGISTRATION,
            peer_secret_hash=str(self.life),
            directories=self.first_directories(),
            quarantined=tuple(
                QuarantinedReplica(topic_id=TOPIC, partition=PartitionIndex(each))
                for each in sorted(disk.quarantined)
            ),
            intact_since=None if disk.intact_since is None or not kept else BrokerEpoch(disk.intact_since),
        )

    def _own_directories(self) -> tuple[Directory, ...]:
        if self.failed:
            return ()
        epoch = BrokerEpoch(self.disk.last_broker_epoch)
        return (Directory(id=self.disk.directory, last_broker_epoch=epoch),)

    def first_directories(self) -> tuple[Directory, ...]:
        """Return the directories of a registration: none before the identity file has the broker epoch.

        If the broker were elected before the identity file has the epoch, and then killed, the record would name an
        incarnation that is not on its disk, and the broker would mistake its disk for an old copy.
        """
        return ()

    def registered(self, items: dict[Key, Item], kept: bool) -> None:
        """Check for an old copy, then begin the incarnation."""
        self._kept = kept
        numbers = self.world.partitions
        self._look_for_old_copy(
            {each: items[key] for each in numbers if (key := partition_key(each)) in items}
        )

    def _look_for_old_copy(self, records: dict[int, Versioned[PartitionRecord]]) -> None:
        """Before this incarnation is stored, leave the ISR of partitions that count more bytes than the disk has."""
        for partition, item in records.items():
            if self._is_older_than(item.value):
                self._take_out(partition, item, lambda: self._read_again(self._look_for_old_copy))
                return
        self._begin_incarnation()

    def _is_older_than(self, record: PartitionRecord) -> bool:
        home = self._home(record)
        return (
            home is not None
            and home.directory == self.disk.directory
            and any(
                entry.broker == self.number and self.disk.last_broker_epoch < entry.broker_epoch < self.epoch
                for entry in relied_on(record)
            )
        )

    def _read_again(self, then: Callable[[dict[int, Versioned[PartitionRecord]]], None]) -> None:
        def answered(records: dict[int, Versioned[PartitionRecord]] | None) -> None:
            if records is None:
                self.after(AGAIN_SECONDS, self._read_again, then)
            else:
                then(records)

        self.ask_store(self.world.records, answered)

    def _begin_incarnation(self) -> None:
        if not self.failed:
            self._write_identity(self.disk)
        self.change_registration(self._shown, self.epoch, directories=self._directories)

    def _write_identity(self, disk: Disk) -> None:
        if not self._kept or disk.intact_since is None:
            disk.intact_since = self.epoch
        # The boot number is written with the epoch and not earlier: otherwise, after a start that lost bytes and ended
        # before this write, the next start would look complete.
        disk.last_broker_epoch, disk.boot = self.epoch, self.world.boots[self.number]
        self._kept = True

    def _shown(self, result: tuple[bool, Revision] | None, epoch: int) -> None:
        if epoch != self.epoch:
            return
        if result is None:
            self.after(AGAIN_SECONDS, self._begin_incarnation)
        elif result[0]:
            self._act()

    def _act(self) -> None:
        self.ready = self.listens = True
        for partition, log in self.disk.logs.items():
            if log.synced < log.end:
                self.sync_soon(partition)  # a killed process left the bytes in the page cache
        if self.mirror.revision:
            for partition in list(self.mirror.partitions):
                self.reconcile(partition)
        else:
            self.mirror.list()

    def lease_lost(self) -> None:
        """Begin another incarnation in the same process, which keeps all written bytes."""
        if self.stopping:
            return
        self.ready = False
        for role in self.roles.values():
            role.close()
        self.roles.clear()
        self.register(not self.failed)

    # -- roles

    def registered_brokers(self) -> dict[BrokerId, RegisteredBroker]:
        """Return the registrations in the form that leaders need."""
        if self._registered_brokers is None:
            self._registered_brokers = registered_brokers(self.mirror.brokers)
        return self._registered_brokers

    def mirrored(self, changed: list[Key]) -> None:
        """Apply changes to registrations and partitions."""
        if any(kind == "broker" for kind, _ in changed):
            self._registered_brokers = None
            for role in list(self.roles.values()):
                if isinstance(role, Leading):
                    role.brokers_changed()
        if self.ready:
            for kind, number in changed:
                if kind == "partition":
                    self.reconcile(number)
        self.controlling.look()
        self.detecting.look()

    def reconcile(self, partition: int) -> None:
        """Lead, follow or drop a partition, as the record of the partition requires."""
        item = self.mirror.partitions.get(partition)
        if item is None or not self.ready or item.mod_revision < self._own_write.get(partition, 0):
            # A record older than the broker's own last write may still name it as leader.
            return
        record, role = item.value, self.roles.get(partition)
        home = self._home(record)
        if home is None:
            self._close(partition)
            self.disk.logs.pop(partition, None)
            return
        if isinstance(role, Leading):
            if role.epoch == record.leader_epoch and self.leads(record):
                role.record_changed(record, item.mod_revision)
                return
            self._close(partition)
        if partition in self.damaged:
            self._close(partition)
            self.leave_for_damage(partition)
            return
        if partition in self.disk.quarantined:
            return
        if self.leads(record):
            self._lead(partition, record, item.mod_revision)
        elif not self.failed:
            self._follow(partition, record, home)

    def leads(self, record: PartitionRecord) -> bool:
        """Return whether the record names this broker in this incarnation as leader (rule 4.1)."""
        leader = record.leader
        return leader is not None and leader.broker == self.number and leader.broker_epoch == self.epoch

    def _home(self, record: PartitionRecord) -> Replica | None:
        return next((each for each in record.replicas if each.broker == self.number), None)

    def _lead(self, partition: int, record: PartitionRecord, revision: Revision) -> None:
        log = self.log(partition)
        if record.leader_epoch < log.highest_epoch:
            self.world.note("will not lead", self.number, record.leader_epoch, log.highest_epoch)
            return
        self._close(partition)
        self.roles[partition] = role = Leading(self, partition, log, record, revision)
        if self.failed:
            role.step(DirectoryFailed())

    def _follow(self, partition: int, record: PartitionRecord, home: Replica) -> None:
        role = self.roles.get(partition)
        generation = generation_in(home, self.disk.directory)
        if isinstance(role, Following):
            followed = (role.leader, role.epoch, role.generation)
            leader = record.leader
            if leader is not None and followed == (leader.broker, record.leader_epoch, generation):
                return
            self._close(partition)
        if record.leader is not None and record.leader.broker != self.number:
            log = self.log(partition)
            if log.highest_epoch > record.leader_epoch:
                self.world.note("will not follow", self.number, record.leader_epoch, log.highest_epoch)
                return
            self.roles[partition] = Following(
                self, partition, log, record.leader.broker, LeaderEpoch(record.leader_epoch), generation
            )

    def _close(self, partition: int) -> None:
        role = self.roles.pop(partition, None)
        if role is not None:
            role.close()

    # -- disk

    @property
    def takes_writes(self) -> bool:
        """Whether the directory accepts appends."""
        return not self.failed and self.world.now >= self.full_until

    def log(self, partition: int) -> Log:
        """Return the log, which is created at its first use."""
        log = self.disk.logs.get(partition)
        if log is None:
            log = self.disk.logs[partition] = Log()
        return log

    def sync_soon(self, partition: int) -> None:
        """Sync a log: soon if synced bytes count, and some time later otherwise."""
        if partition in self._syncing or self.failed:
            return
        self._syncing.add(partition)
        role = self.roles.get(partition)
        counts = not isinstance(role, Leading) or role.machine.counts_synced
        plan = self.world.plan
        if counts and not plan.replicated:
            delay = self.world.schedule.between(0.001, plan.sync_seconds)
        else:
            delay = self.world.schedule.between(0.05, LAZY_SYNC_SECONDS)
        log = self.log(partition)
        self.after(delay, self._synced, partition, log, log.end, log.cuts)

    def _synced(self, partition: int, log: Log, offset: int, cuts: int) -> None:
        self._syncing.discard(partition)
        if self.disk.logs.get(partition) is not log or self.failed:
            return
        if log.cuts == cuts:
            log.synced = max(log.synced, offset)
            role = self.roles.get(partition)
            if role is not None:
                role.synced(offset)
        if log.synced < log.end:
            self.sync_soon(partition)

    def fail_directory(self) -> None:
        """Stop all writes to the directory after a failed sync."""
        if not self.ready or self.failed:
            return
        self.failed = True
        self.disk.boot = -1
        self.doubt_logs()
        for partition, role in list(self.roles.items()):
            if isinstance(role, Leading):
                role.step(DirectoryFailed())
            else:
                self._close(partition)
        self._hide_directories()

    def doubt_logs(self) -> None:
        """Make the next start lose unsynced bytes: after a failed sync, the kernel marks their pages as clean."""
        for log in self.disk.logs.values():
            log.doubtful = log.synced if log.doubtful is None else min(log.synced, log.doubtful)

    def _hide_directories(self) -> None:
        """Remove the directory from the registration, so that no partition record counts the directory's contents."""
        self.change_registration(self._hidden, self.epoch, directories=())

    def _hidden(self, result: tuple[bool, Revision] | None, epoch: int) -> None:
        if result is None and epoch == self.epoch:
            self.after(AGAIN_SECONDS, self._hide_directories)

    # -- distrusted bytes

    def find_damage(self, partition: int, offset: int) -> None:
        """Distrust the bytes from an offset on: leave ISR and ELR, then drop them."""
        log = self.disk.logs.get(partition)
        if self.ready and log is not None and log.log_start <= offset < log.end:
            self.damaged[partition] = offset
            self.world.note("damage", self.number, offset, log.end)
            self._close(partition)
            self.leave_for_damage(partition)

    def leave_for_damage(self, partition: int) -> None:
        """Leave the record of a damaged partition, then drop the bytes."""
        item = self.mirror.partitions.get(partition)
        if item is not None and partition in self.damaged:
            self._take_out(partition, item, lambda: self.drop_damaged(partition))

    def drop_damaged(self, partition: int) -> None:
        """Drop distrusted bytes, and fetch them again."""
        offset = self.damaged.pop(partition, None)
        if offset is not None:
            self.log(partition).truncate(offset)
            self.reconcile(partition)

    def _take_out(self, partition: int, item: Versioned[PartitionRecord], then: Callable[[], None]) -> None:
        """Remove this broker from the record, with retries until it succeeds, and then continue.

        If no other replica would be left, nothing may be dropped: damaged bytes stay and are served as far as possible,
        and a broker with an old copy of a disk waits.
        """
        if partition in self._taking_out:
            return
        if self._home(item.value) is None:
            self.damaged.pop(partition, None)
            self.reconcile(partition)
            return
        record = self.without_this(item.value)
        if record is None:
            if self.damaged.pop(partition, None) is not None:
                torn_at = self.log(partition).torn_at
                if torn_at is not None:
                    self.log(partition).truncate(torn_at)  # the bytes of torn batches were never synced
                self.reconcile(partition)
            else:
                self.after(AGAIN_SECONDS, self._try_again, partition, then)
            return
        self._taking_out.add(partition)
        key, store = partition_key(partition), self.world.store
        compares = (Compare(key, item.mod_revision), *own_registration(self.number, self.epoch))
        transaction = Transaction(compares, ((key, record, None),))
        self.ask_store(lambda: store.transact(transaction), self._taken_out, partition, then)

    def without_this(self, record: PartitionRecord) -> PartitionRecord | None:
        """Return the partition record without this broker in ISR and ELR, and with a new generation of its replica.

        A directory that the record does not name starts at generation 0. The record names the directory from now on, so
        that reports made before the bytes were lost differ from later ones.
        """
        return taken_out(record, BrokerId(self.number), self.disk.directory)

    def _taken_out(
        self, result: tuple[bool, Revision] | None, partition: int, then: Callable[[], None]
    ) -> None:
        self._taking_out.discard(partition)
        if result is not None and result[0]:
            self._own_write[partition] = result[1]
            then()
        else:
            self.after(AGAIN_SECONDS, self._try_again, partition, then)

    def _try_again(self, partition: int, then: Callable[[], None]) -> None:
        # Another attempt to leave may have succeeded, even while the record was being read, and the replica may be in
        # sync again.
        def read(records: dict[int, Versioned[PartitionRecord]]) -> None:
            if not self._has_left(partition):
                self._take_out(partition, records[partition], then)

        if not self._has_left(partition):
            self._read_again(read)

    def _has_left(self, partition: int) -> bool:
        return self.ready and partition not in self.damaged

    # -- calls from other brokers

    def fetch(self, partition: int, report: FollowerReport, answer: Callable[[FetchAnswer], None]) -> None:
        """Serve a fetch from a follower."""
        role = self.roles.get(partition)
        if isinstance(role, Leading):
            role.fetch(report, answer)
        else:
            answer(FetchRefused())

    def promise(
        self, partition: int, leader_epoch: int, revision: int, answer: Callable[[Promise], None]
    ) -> None:
        """Answer the controller's question about a vacancy, if the mirror shows the vacancy (quorum Q6)."""
        item = self.mirror.partitions.get(partition)
        home = None if item is None else self._home(item.value)
        if (
            item is None
            or home is None
            or not self.ready
            or self.failed
            or partition in self.damaged
            or partition in self.disk.quarantined
            or not self.takes_no_part(partition, item, leader_epoch, revision)
        ):
            return
        log = self.log(partition)
        answer(
            Promise(
                self.epoch,
                self.disk.directory,
                generation_in(home, self.disk.directory),
                LeaderEpoch(leader_epoch),
                LogEnd(LeaderEpoch(-1) if log.last_epoch is None else log.last_epoch, log.end),
                Offset(log.log_start),
            )
        )

    def takes_no_part(
        self, partition: int, item: Versioned[PartitionRecord], leader_epoch: int, revision: int
    ) -> bool:
        """Return whether the mirror shows a vacancy and the replica has no role of an older epoch."""
        return (
            item.mod_revision >= revision
            and item.value.leader is None
            and item.value.leader_epoch == leader_epoch
            and partition not in self.roles
        )

    def progress(self, partition: int, *report: Any) -> None:
        """Count the synced offset of a follower."""
        role = self.roles.get(partition)
        if isinstance(role, Leading):
            role.progress(*report)
