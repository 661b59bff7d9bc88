"""A broker: processes that come and go over one disk, a lease, a mirror, and the partitions it keeps.

A process begins by registering, looks whether its disk is an old copy, writes its life into the identity file, and
then leads or follows what the records say. Everything that a process has scheduled ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, Revision, TopicId
from fairlead_broker.registry.isr import generation_in
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    Directory,
    PartitionRecord,
    QuarantinedReplica,
    Replica,
)
from fairlead_broker.replication.leader_messages import DirectoryFailed, FollowerReport
from fairlead_broker.replication.registered_broker import RegisteredBroker, registered_brokers
from simulator import guards
from simulator.controlling import Controlling
from simulator.disk import Disk, Log
from simulator.failing import Failing
from simulator.following import Following
from simulator.leading import Leading
from simulator.leaving import AGAIN_SECONDS
from simulator.messages import FetchAnswer, FetchRefused
from simulator.mirror import Mirror
from simulator.store import Compare, Transaction, broker_key

if TYPE_CHECKING:
    from simulator.world import World

TOPIC = TopicId("11111111-1111-4111-8111-111111111111")
NOWHERE = Addresses(data="-", peer="-", ops="-")
LAZY_SYNC_SECONDS = 2.0


class Broker(Failing):
    """One member of the cluster."""

    def __init__(self, world: World, number: int, disk: Disk) -> None:
        """Be there, switched off."""
        super().__init__(world, number)
        self.disk = disk
        self.ready = False
        """Registered, and the identity file says so."""
        self.stopping = False
        self.epoch = BrokerEpoch(0)
        self.roles: dict[int, Leading | Following] = {}
        self.mirror = Mirror(self)
        self.controlling = Controlling(self)
        self.lease = 0
        self._confirmed_until = 0.0
        self._kept = False
        self._registered: dict[BrokerId, RegisteredBroker] | None = None
        self._syncing: set[int] = set()
        self._taking_out: set[int] = set()
        self._own_write: dict[int, int] = {}
        self.damaged: dict[int, int] = {}

    # -- processes

    def start(self) -> None:
        """Begin a process over the disk."""
        assert not self.alive, "one process at a time"
        self.life += 1
        self.alive, self.ready, self.stopping, self.paused_until = True, False, False, None
        self.roles.clear()
        self._backlog.clear()
        self._syncing.clear()
        self._taking_out.clear()
        self._own_write.clear()
        self.damaged.clear()
        self.mirror = Mirror(self)
        self.controlling = Controlling(self)
        self.recover()
        kept = self.kept_everything()
        if kept:
            # Together with the marker: a kill before this life is written down loses nothing either.
            self.disk.boot = self.world.boots[self.number]
        self.remove_clean_marker()
        self._register(kept)

    def kept_everything(self) -> bool:
        """Say whether what was written before this start is still there: a clean marker, or the same kernel."""
        return self.disk.clean_marker or self.disk.boot == self.world.boots[self.number]

    def remove_clean_marker(self) -> None:
        """Let a later crash not look like a clean stop."""
        self.disk.clean_marker = False

    def kill(self) -> None:
        """End the process at once; what was written stays in the page cache."""
        if not self.alive:
            return
        self.alive = self.ready = False
        self.life += 1
        for role in self.roles.values():
            role.closed = True
        self.roles.clear()
        self.mirror.close()

    # -- registration

    def _register(self, kept: bool) -> None:
        self.lease = self.world.next_lease()
        lease, seconds, disk = self.lease, self.world.plan.lease_seconds, self.disk
        registration = BrokerRegistration(
            state=BrokerState.RUNNING,
            addresses=NOWHERE,
            rack=None,
            release="",
            peer_secret_hash="",
            directories=self.first_directories(),
            quarantined=tuple(
                QuarantinedReplica(topic_id=TOPIC, partition=PartitionIndex(each))
                for each in sorted(disk.quarantined)
            ),
            intact_since=None if disk.intact_since is None or not kept else BrokerEpoch(disk.intact_since),
        )
        self._directories = self._own_directories()
        key = broker_key(self.number)
        store, sent = self.world.store, self.world.now

        def put() -> tuple[bool, Revision, dict[int, Versioned[PartitionRecord]]]:
            if key in store.items:
                return False, store.revision, {}
            store.grant(lease, seconds)
            done, revision = store.transact(
                Transaction((Compare(key, 0, created=True),), ((key, registration, lease),))
            )
            return done, revision, self.world.records()

        self.ask_store(put, self._put, kept, lease, sent)

    def _put(
        self,
        answer: tuple[bool, Revision, dict[int, Versioned[PartitionRecord]]] | None,
        kept: bool,
        lease: int,
        sent: float,
    ) -> None:
        if answer is None or not answer[0]:
            # The old key must vanish first; one of our own whose answer was lost ends with its lease.
            self.after(AGAIN_SECONDS, self._register, kept)
            return
        self.epoch = BrokerEpoch(answer[1])
        self._confirmed_until = sent + self.world.plan.lease_seconds * 0.8
        self.after(self.world.plan.lease_seconds / 3, self._keep_alive, lease)
        self._kept = kept
        self._look_for_old_copy(dict(answer[2]))

    def _look_for_old_copy(self, records: dict[int, Versioned[PartitionRecord]]) -> None:
        """Before this life is written down: what the disk had may be older than what others count on."""
        for partition, item in records.items():
            if self._is_older_than(item.value):
                self._take_out(partition, item, lambda: self._read_again(self._look_for_old_copy))
                return
        self._begin_life()

    def _is_older_than(self, record: PartitionRecord) -> bool:
        home = next((each for each in record.replicas if each.broker == self.number), None)
        return (
            home is not None
            and home.directory == self.disk.directory
            and any(
                entry.broker == self.number and self.disk.last_broker_epoch < entry.broker_epoch < self.epoch
                for entry in (*record.isr, *record.elr)
            )
        )

    def _read_again(self, then: Callable[[dict[int, Versioned[PartitionRecord]]], None]) -> None:
        def answered(records: dict[int, Versioned[PartitionRecord]] | None) -> None:
            if records is None:
                self.after(AGAIN_SECONDS, self._read_again, then)
            else:
                then(records)

        self.ask_store(self.world.records, answered)

    def _own_directories(self) -> tuple[Directory, ...]:
        if self.failed:
            return ()
        epoch = BrokerEpoch(self.disk.last_broker_epoch)
        return (Directory(id=self.disk.directory, last_broker_epoch=epoch),)

    def first_directories(self) -> tuple[Directory, ...]:
        """Directories with which a life is registered: none before the identity file knows of the life.

        Elected in between and killed, the broker would find a life in the record that its disk has never seen, and
        take its disk for an old copy.
        """
        return ()

    def _begin_life(self) -> None:
        if not self.failed:
            self._write_identity(self.disk)
        key, epoch, store = broker_key(self.number), self.epoch, self.world.store
        directories = self._directories

        def show() -> tuple[bool, Revision]:
            item = store.items.get(key)
            if item is None or item.create_revision != epoch:
                return False, store.revision
            shown = msgspec.structs.replace(item.value, directories=directories)
            return store.transact(
                Transaction(guards.own_registration(self.number, epoch), ((key, shown, self.lease),))
            )

        self.ask_store(show, self._shown, epoch)

    def _write_identity(self, disk: Disk) -> None:
        if not self._kept or disk.intact_since is None:
            disk.intact_since = self.epoch
        # In one write: a start that lost something and ended before this must not make the next one look whole.
        disk.last_broker_epoch, disk.boot = self.epoch, self.world.boots[self.number]
        self._kept = True

    def _shown(self, result: tuple[bool, Revision] | None, epoch: int) -> None:
        if epoch != self.epoch:
            return
        if result is None:
            self.after(AGAIN_SECONDS, self._begin_life)
        elif result[0]:
            self._act()

    def _act(self) -> None:
        self.ready = True
        for partition, log in self.disk.logs.items():
            if log.synced < log.end:
                self.sync_soon(partition)  # what a killed process had left to the page cache
        if self.mirror.revision:
            self.reconcile_all()
        else:
            self.mirror.list()

    def _keep_alive(self, lease: int) -> None:
        if lease != self.lease:
            return
        seconds, sent = self.world.plan.lease_seconds, self.world.now
        self.ask_store(lambda: self.world.store.keep_alive(lease, seconds), self._kept_alive, lease, sent)

    def _kept_alive(self, held: bool | None, lease: int, sent: float) -> None:
        if lease != self.lease:
            return
        if held is False:
            self._lost_lease()
            return
        if held:
            self._confirmed_until = max(self._confirmed_until, sent + self.world.plan.lease_seconds * 0.8)
        self.after(self.world.plan.lease_seconds / 3, self._keep_alive, lease)

    def _lost_lease(self) -> None:
        """Begin another life in the same process: nothing that was written is gone."""
        if self.stopping:
            return
        self.world.note("lost lease", self.number, self.epoch)
        self.ready = False
        for role in self.roles.values():
            role.close()
        self.roles.clear()
        self._register(kept=not self.failed)

    def lease_is_confirmed(self) -> bool:
        """Say whether the lease cannot have ended yet, by the own clock."""
        return self.world.now < self._confirmed_until

    # -- what the mirror shows

    def registered(self) -> dict[BrokerId, RegisteredBroker]:
        """Return the registrations as leaders need them."""
        if self._registered is None:
            self._registered = registered_brokers(self.mirror.brokers)
        return self._registered

    def mirrored(self, brokers: bool, partitions: list[int]) -> None:
        """Act on what has changed."""
        if brokers:
            self._registered = None
            for role in list(self.roles.values()):
                if isinstance(role, Leading):
                    role.brokers_changed()
        if self.ready:
            for partition in partitions:
                self.reconcile(partition)
        self.controlling.look()

    def reconcile_all(self) -> None:
        """Lead and follow what the records say."""
        for partition in list(self.mirror.partitions):
            self.reconcile(partition)

    def reconcile(self, partition: int) -> None:
        """Lead or follow what the record says, or let go of it."""
        item = self.mirror.partitions.get(partition)
        if item is None or not self.ready or item.mod_revision < self._own_write.get(partition, 0):
            # An older record than the one that this broker has written about itself may still let it lead.
            return
        record, role = item.value, self.roles.get(partition)
        home = next((each for each in record.replicas if each.broker == self.number), None)
        if home is None:
            self._let_go(partition)
            self.disk.logs.pop(partition, None)
            return
        if isinstance(role, Leading):
            if role.epoch == record.leader_epoch and self.leads(record):
                role.record_changed(record, item.mod_revision)
                return
            self._let_go(partition)
        if partition in self.damaged:
            self._let_go(partition)
            self._leave_for_damage(partition)
            return
        if partition in self.disk.quarantined:
            return
        if self.leads(record):
            self._lead(partition, record, item.mod_revision)
        elif not self.failed:
            self._follow(partition, record, home)

    def leads(self, record: PartitionRecord) -> bool:
        """Say whether the record names this broker in this life (rule 4.1)."""
        leader = record.leader
        return leader is not None and leader.broker == self.number and leader.broker_epoch == self.epoch

    def _lead(self, partition: int, record: PartitionRecord, revision: Revision) -> None:
        log = self.log(partition)
        if record.leader_epoch < log.highest_epoch:
            self.world.note("will not lead", self.number, record.leader_epoch, log.highest_epoch)
            return
        self._let_go(partition)
        self.roles[partition] = role = Leading(self, partition, log, record, revision)
        if self.failed:
            role.step(DirectoryFailed())

    def _follow(self, partition: int, record: PartitionRecord, home: Replica) -> None:
        role = self.roles.get(partition)
        generation = generation_in(home, self.disk.directory)
        if isinstance(role, Following):
            same = record.leader is not None and (role.leader, role.epoch, role.generation) == (
                record.leader.broker,
                record.leader_epoch,
                generation,
            )
            if same:
                return
            self._let_go(partition)
        if record.leader is not None and record.leader.broker != self.number:
            log = self.log(partition)
            if log.highest_epoch > record.leader_epoch:
                self.world.note("will not follow", self.number, record.leader_epoch, log.highest_epoch)
                return
            self.roles[partition] = Following(
                self, partition, log, record.leader.broker, LeaderEpoch(record.leader_epoch), generation
            )

    def _let_go(self, partition: int) -> None:
        role = self.roles.pop(partition, None)
        if role is not None:
            role.close()

    # -- disk

    def log(self, partition: int) -> Log:
        """Return the log, made when first asked for."""
        log = self.disk.logs.get(partition)
        if log is None:
            log = self.disk.logs[partition] = Log()
        return log

    def sync_soon(self, partition: int) -> None:
        """Make a log durable: at once where that counts, some time else."""
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

    # -- calls of other brokers

    def fetch(self, partition: int, report: FollowerReport, answer: Callable[[FetchAnswer], None]) -> None:
        """Serve a follower."""
        role = self.roles.get(partition)
        if isinstance(role, Leading):
            role.fetch(report, answer)
        else:
            answer(FetchRefused())

    def progress(self, partition: int, *report: Any) -> None:
        """Hear of a follower's fsync."""
        role = self.roles.get(partition)
        if isinstance(role, Leading):
            role.progress(*report)

    # -- stopping

    def stop(self) -> None:
        """Stop cleanly: hand over, make everything durable, say so, leave."""
        if not self.ready or self.stopping:
            return
        self.stopping = True
        key, store = broker_key(self.number), self.world.store
        epoch = self.epoch

        def say() -> tuple[bool, Revision]:
            item = store.items.get(key)
            if item is None or item.create_revision != epoch:
                return False, store.revision
            registration = _stopping(item.value)
            return store.transact(
                Transaction(guards.own_registration(self.number, epoch), ((key, registration, self.lease),))
            )

        self.ask_store(say, lambda _: self.after(0.1, self._finish_stop, self.world.now + 1.5))

    def _finish_stop(self, until: float) -> None:
        if self.world.now < until and any(isinstance(role, Leading) for role in self.roles.values()):
            self.after(0.1, self._finish_stop, until)
            return
        for partition in list(self.roles):
            self._let_go(partition)
        if not self.failed:
            self.sync_everything()
            self.disk.clean_marker = True
        lease = self.lease
        self.kill()
        self.world.store.revoke(lease)
        self.world.stopped(self)

    def sync_everything(self) -> None:
        """Make every log durable before the clean marker says so (rule 4.10)."""
        for log in self.disk.logs.values():
            log.synced = log.end


def _stopping(registration: BrokerRegistration) -> BrokerRegistration:
    return msgspec.structs.replace(registration, state=BrokerState.STOPPING)
