"""The invariants of partitions, each a named class of violation.

The judge receives every commit, every leader and every answer, unlike any broker, and raises the violated invariant.
The names of violations follow reference specifications of Kafka's replication (hachikuji, Vanlightly).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.controller.failure_detector import PROBE_SECONDS_MIN
from fairlead_broker.producers.state import STEP_US_MAX
from fairlead_broker.registry.records import DurabilityState, PartitionRecord
from fairlead_broker.replication.leader import PartitionLeader
from partitions.disk import Cell, Log
from simulator.judge import EpochsRise, Violation
from simulator.store import Change, broker_key, partition_key

DELETED = Cell(-1, -1)
"""Placeholder for a record that was deleted before the log of the leader began."""

if TYPE_CHECKING:
    from partitions.broker import Broker
    from partitions.leading import Leading
    from partitions.world import World


class LeaderCompleteness(Violation):
    """A leader was elected without all records that were committed before."""


class ConsistentRead(Violation):
    """Two values were committed, or read, at one offset."""


class StrongIsr(Violation):
    """A live member of the stored ISR lacks records that the leader has just committed."""


class DeletedByLeaders(Violation):
    """A log begins after records that no leader has deleted, so it lacks records that count as present."""


class ReplicationQuorumSuperset(Violation):
    """A leader commits without counting a member of the stored ISR."""


class OneLeaderPerEpoch(Violation):
    """Two incarnations lead in one leader epoch."""


class AcknowledgedIsCommitted(Violation):
    """A value was acknowledged to a client, but is not committed at its offset."""


class CommitsAlone(Violation):
    """A leader that is alone and has no lease commits records that an unclean election has given up."""


class NothingTwice(Violation):
    """One value is committed at two offsets."""


class InOrder(Violation):
    """The batches of an idempotent producer are out of order, or one of them is missing."""


class LatestRises(Violation):
    """A reader received a smaller high watermark than before (B3)."""


class FailedIsNotStored(Violation):
    """A value that was reported as not stored was read (A5)."""


class TimesRise(Violation):
    """A batch has an earlier append time than the previous batch, by at most an hour."""


class ProducersKept(Violation):
    """A leader refuses a producer as unknown although its log has a recent batch from the producer."""


class ReplicasAgree(Violation):
    """A replica differs from the committed records at the end of a run."""


class AnyPromisesSuffice(Violation):
    """R voters may answer for an election now, and the best of their logs lacks a committed record."""


class EndedInVain(Violation):
    """The lease of a running broker was ended although its port had not refused two connections."""


class EndedAgain(Violation):
    """A detector has ended two incarnations of one process, or an incarnation that it did not suspect."""


@dataclass(slots=True)
class Partition:
    """The truth about one partition."""

    committed: list[Cell] = field(default_factory=list)
    committed_in: list[int] = field(default_factory=list)
    """Leader epoch of the first commit of each offset."""
    deleted: int = 0
    """Offset below which leaders have deleted records."""
    places: dict[int, int] = field(default_factory=dict)
    """Offset of each committed value."""
    sequences: dict[int, int] = field(default_factory=dict)
    """Last committed sequence of each producer."""
    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Broker and broker epoch that led in each leader epoch."""
    leader: Leading | None = None
    """Leader in the highest leader epoch so far."""
    lost: set[int] = field(default_factory=set)
    """Values given up by an unclean election."""
    unclean_epoch: int = -1
    """Leader epoch of the last unclean election."""


class Judge:
    """The observer that checks every invariant."""

    def __init__(self, world: World) -> None:
        """Start without committed records."""
        self._world = world
        self.partitions = {number: Partition() for number in world.partitions}
        self.unclean: list[PartitionRecord] = []
        """Records of unclean elections, compared by identity."""
        self.counts: Counter[str] = Counter()
        self.failed_values: set[int] = set()
        self._survived: Counter[tuple[int, int, int, int]] = Counter()
        """Number of incarnations of a running process that a detector ended, by broker and process of both."""

    # -- leaders

    def leads(self, leading: Leading) -> None:
        """Check a new leader."""
        truth = self.partitions[leading.partition]
        self._world.note("leads", leading.broker.number, leading.broker_epoch, leading.epoch, leading.log.end)
        self.counts["leaders"] += 1
        who = (leading.broker.number, leading.broker_epoch)
        if truth.epochs.setdefault(leading.epoch, who) != who:
            raise OneLeaderPerEpoch(f"epoch {leading.epoch}: {truth.epochs[leading.epoch]} and {who}")
        log = leading.log
        self._check_start(truth, leading, leading.broker.number, log)
        for offset in range(max(log.base, log.log_start), len(truth.committed)):
            if truth.committed_in[offset] >= leading.epoch:
                break
            if offset >= log.end or log.cell(offset) != truth.committed[offset]:
                has = log.cell(offset) if offset < log.end else "nothing"
                raise LeaderCompleteness(
                    f"broker {who} leads in {leading.epoch} with {has} at {offset}, "
                    f"committed is {truth.committed[offset]}"
                )
        if truth.leader is None or truth.leader.epoch < leading.epoch:
            truth.leader = leading

    def deletes(self, leading: Leading, offset: int) -> None:
        """Record that a leader moves its log start to an offset."""
        truth = self.partitions[leading.partition]
        if leading.epoch >= truth.unclean_epoch:
            truth.deleted = max(truth.deleted, offset)

    def _check_start(self, truth: Partition, leading: Leading, broker: int, log: Log) -> None:
        if leading.epoch >= truth.unclean_epoch and max(log.base, log.log_start) > truth.deleted:
            raise DeletedByLeaders(
                f"broker {broker} begins at {log.log_start}, deleted is what lies below {truth.deleted}"
            )

    def commits(self, leading: Leading, offset: int) -> None:
        """Check the records that a leader commits."""
        truth = self.partitions[leading.partition]
        log = leading.log
        self._world.note("commits", leading.broker.number, leading.epoch, offset)
        start = max(min(log.high_watermark, len(truth.committed)), log.base)
        if leading.epoch < truth.unclean_epoch:
            self._commits_deposed(truth, leading, start, offset)
            return
        for at in range(start, offset):
            cell = log.cell(at)
            if at > log.base:
                _check_times(log.cell(at - 1), cell)
            if at >= len(truth.committed):
                self._add(truth, at, cell, leading.epoch)
            elif truth.committed[at] != cell:
                raise ConsistentRead(f"{cell} and {truth.committed[at]} committed at {at}")
        self._check_successor(truth, leading, offset)
        self._check_isr(leading, offset)
        self.check_promises(leading.partition)

    def _add(self, truth: Partition, at: int, cell: Cell, epoch: int) -> None:
        assert at == len(truth.committed), "commits leave no gap"
        if cell.value in truth.places:
            raise NothingTwice(f"value {cell.value} at {truth.places[cell.value]} and {at}")
        if cell.value in self.failed_values:
            raise FailedIsNotStored(f"value {cell.value} was refused for good and is committed at {at}")
        if cell.producer >= 0:
            expected = truth.sequences.get(cell.producer, -1) + 1
            if cell.sequence != expected:
                raise InOrder(f"producer {cell.producer}: sequence {cell.sequence} where {expected} is due")
            truth.sequences[cell.producer] = cell.sequence
        truth.committed.append(cell)
        truth.committed_in.append(epoch)
        truth.places[cell.value] = at
        self.counts["commits"] += 1

    def does_not_know(self, leading: Leading, producer: int) -> None:
        """Check the refusal of a producer as unknown; producers are remembered for much longer than a whole run."""
        if any(cell.producer == producer for cell in leading.log.cells):
            raise ProducersKept(f"producer {producer} is unknown to the leader of {leading.epoch}")

    def _commits_deposed(self, truth: Partition, leading: Leading, start: int, offset: int) -> None:
        """Check a leader that has not yet received the result of the unclean election that replaced it.

        A leader alone in the ISR must have stopped according to its own clock (protocol section 3, rule 7). A leader
        with in-sync followers may continue; this is part of the price of unclean elections.
        """
        record: PartitionRecord = self._world.store.items[partition_key(leading.partition)].value
        winner = None if record.leader is None else self._world.brokers[record.leader.broker]
        for at in range(start, offset):
            cell = leading.log.cell(at)
            if at < len(truth.committed) and truth.committed[at] == cell:
                continue
            log = None if winner is None else winner.log(leading.partition)
            assert isinstance(leading.machine, PartitionLeader), (
                "no election of a quorum is unclean by itself"
            )
            if leading.machine.maximal_isr == {leading.broker.number} and (
                log is None or at >= log.end or log.cell(at) != cell
            ):
                raise CommitsAlone(
                    f"{cell} committed at {at} by a leader of {leading.epoch}, alone and deposed"
                )
            truth.lost.add(cell.value)

    def _check_successor(self, truth: Partition, leading: Leading, offset: int) -> None:
        """Check that a deposed leader commits only records that its successor has."""
        latest = truth.leader
        if latest is None or latest.closed or latest.epoch <= leading.epoch or truth.unclean_epoch >= 0:
            return
        log, at = latest.log, offset - 1
        if log.base <= at and (at >= log.end or log.cell(at) != leading.log.cell(at)):
            raise LeaderCompleteness(
                f"leader of {leading.epoch} commits {leading.log.cell(at)} at {at}, leader of {latest.epoch} lacks it"
            )

    def _check_isr(self, leading: Leading, offset: int) -> None:
        record: PartitionRecord = self._world.store.items[partition_key(leading.partition)].value
        if record.leader_epoch != leading.epoch or record.leader is None or record.quorum is not None:
            return
        assert isinstance(leading.machine, PartitionLeader), "only an isr has members"
        maximal = leading.machine.maximal_isr
        at = offset - 1
        for entry in record.isr:
            if entry.broker not in maximal:
                raise ReplicationQuorumSuperset(
                    f"broker {entry.broker} is in the stored isr, not in {maximal}"
                )
            broker = self._world.brokers[entry.broker]
            if not broker.ready or broker.epoch != entry.broker_epoch:
                continue
            log = broker.log(leading.partition)
            self._check_start(self.partitions[leading.partition], leading, entry.broker, log)
            if log.base > at or log.log_start > at:
                continue
            if at >= log.end or log.cell(at) != leading.log.cell(at):
                raise StrongIsr(f"broker {entry.broker} ends at {log.end}, committed is {offset}")

    def check_promises(self, partition: int) -> None:
        """Check that of any R voters that may answer for an election now, the best log has every committed record."""
        store = self._world.store
        item = store.items.get(partition_key(partition))
        if item is None or item.value.quorum is None:
            return
        record: PartitionRecord = item.value
        brokers = {
            BrokerId(number): store.items[broker_key(number)]
            for number in self._world.brokers
            if broker_key(number) in store.items
        }
        truth = self.partitions[partition].committed
        for chosen in combinations(self._able(partition, record, brokers), self.promises_needed(record)):
            logs = [self._world.brokers[number].log(partition) for number in chosen]
            best = max(logs, key=lambda log: (-1 if log.last_epoch is None else log.last_epoch, log.end))
            for offset in range(max(best.base, best.log_start), len(truth)):
                if offset >= best.end or best.cell(offset) != truth[offset]:
                    raise AnyPromisesSuffice(f"{chosen} may promise, and lack {truth[offset]} at {offset}")

    @staticmethod
    def promises_needed(record: PartitionRecord) -> int:
        """Return R, as the judge computes it independently."""
        assert record.quorum is not None, "only a quorum needs promises"
        return len(record.replicas) - len(record.adding) - record.quorum.write + 1

    def _able(self, partition: int, record: PartitionRecord, brokers: Any) -> list[int]:
        """Return the voters whose answers would count now."""
        able = []
        for voter in record.quorum.voters if record.quorum is not None else ():
            broker, registered = self._world.brokers[voter.broker], brokers.get(voter.broker)
            is_present = broker.ready and not broker.failed and partition not in broker.damaged
            if registered is None or not is_present or broker.epoch != registered.create_revision:
                continue
            place = next(each for each in record.replicas if each.broker == voter.broker)
            disk = broker.disk
            is_kept = voter.broker_epoch == broker.epoch or (
                disk.directory == place.directory
                and kept_in_judge(voter.broker_epoch, registered.value, record, len(record.replicas) == 1)
            )
            if disk.directory == place.directory and is_kept:
                able.append(voter.broker)
        return able

    # -- the store

    def written(self, revision: Revision, changes: list[Change]) -> None:
        """Check the records of one revision."""
        for key, before, after in changes:
            self._world.note("stored", revision, key, None if after is None else after.value)
            if key[0] == "partition" and before is not None and after is not None:
                self._changed(key[1], before.value, after.value)
                self.check_promises(key[1])

    def _changed(self, partition: int, old: PartitionRecord, new: PartitionRecord) -> None:
        if new.leader_epoch < old.leader_epoch:
            raise EpochsRise(f"leader epoch {old.leader_epoch}, then {new.leader_epoch}")
        is_filled = new.quorum is not None and old.leader is None
        is_taken = new.quorum is not None and new.leader is None and old.leader is not None
        if new.leader_epoch == old.leader_epoch and (
            is_taken or (new.leader not in (None, old.leader) and not is_filled)
        ):
            raise EpochsRise(f"epoch {new.leader_epoch} led by {old.leader}, then by {new.leader}")
        if len(new.isr) < len(old.isr):
            self.counts["isr shrinks"] += 1
        elif len(new.isr) > len(old.isr):
            self.counts["isr expands"] += 1
        if any(new is each for each in self.unclean):
            self.counts["unclean elections"] += 1
            self._give_up(partition, new)

    def _give_up(self, number: int, record: PartitionRecord) -> None:
        """Replace the list of committed records by the log of the leader that an unclean election has chosen."""
        assert record.leader is not None, "an unclean election has a winner"
        truth = self.partitions[number]
        log = self._world.brokers[record.leader.broker].log(number)
        truth.unclean_epoch = record.leader_epoch
        kept = 0
        for offset, cell in enumerate(truth.committed):
            # Deleted records of the new leader are compared too: an earlier leader may have had other records at the
            # offset.
            if offset >= log.base and (offset >= log.end or log.cell(offset) != cell):
                break
            kept = offset + 1
        truth.deleted = max(log.log_start, min(truth.deleted, kept))
        for cell in truth.committed[kept:]:
            truth.lost.add(cell.value)
            truth.places.pop(cell.value, None)
        del truth.committed[kept:], truth.committed_in[kept:]
        # The log may begin beyond every committed record, if records of an earlier leader were deleted.
        beyond = log.base - len(truth.committed)
        truth.committed += [DELETED] * beyond
        truth.committed_in += [record.leader_epoch] * beyond
        truth.sequences.clear()
        for cell in truth.committed:
            truth.sequences[cell.producer] = cell.sequence
        for cell in reversed(log.cells if beyond > 0 else ()):
            truth.sequences[cell.producer] = cell.sequence - 1

    # -- ended processes

    def suspects(self, detector: Broker, number: int, epoch: int) -> None:
        """Check that a broker that will end the lease of a running broker was refused often enough."""
        self._world.note("suspects", detector.number, number, epoch)
        victim, item = self._world.brokers[number], self._world.store.items.get(broker_key(number))
        if not victim.alive or item is None or item.create_revision != epoch or not self._holds(victim):
            return
        seconds = self._world.ports.refusing_seconds(number)
        if seconds is None or seconds < PROBE_SECONDS_MIN:
            raise EndedInVain(
                f"broker {detector.number} suspects {number}, whose port refused for {seconds} s"
            )

    def ends(self, detector: Broker, number: int, epoch: int, lease: int) -> None:
        """Check the end of a lease by a broker that suspects an incarnation of another broker."""
        store, victim = self._world.store, self._world.brokers[number]
        if lease not in store.leases:
            return
        item = store.items.get(broker_key(number))
        if item is not None and item.create_revision != epoch:
            raise EndedAgain(
                f"broker {detector.number} ends {item.create_revision} of {number}, suspected {epoch}"
            )
        if not victim.alive or victim.lease != lease:
            self.counts["ended processes"] += 1
            return
        self.counts["false alarms"] += 1
        pair = (detector.number, detector.life, number, victim.life)
        self._survived[pair] += 1
        if self._survived[pair] > 1:
            raise EndedAgain(f"broker {detector.number} ends two incarnations of one process of {number}")

    def _holds(self, broker: Broker) -> bool:
        """Return whether the registration of a broker belongs to its running process."""
        held = self._world.store.leases.get(broker.lease)
        return held is not None and broker_key(broker.number) in held.keys

    # -- clients

    def acknowledged(self, partition: int, value: int, offset: int) -> None:
        """Check an answer with acks=all."""
        self.counts["acknowledged"] += 1
        truth = self.partitions[partition]
        if value in truth.lost:
            return
        if offset >= len(truth.committed) or truth.committed[offset].value != value:
            raise AcknowledgedIsCommitted(f"value {value} was acknowledged at {offset}")

    def read(self, partition: int, leader_epoch: int, offset: int, values: list[int]) -> None:
        """Check the answer to a reader."""
        truth = self.partitions[partition]
        if leader_epoch < truth.unclean_epoch:
            return
        self.counts["read"] += len(values)
        for at, value in enumerate(values, offset):
            if at >= len(truth.committed) and value in truth.lost:
                continue  # A second unclean election restored a replica with records that the first election gave up.
            if at >= len(truth.committed) or truth.committed[at].value != value:
                raise ConsistentRead(f"value {value} was read at {at}, which is not what is committed there")

    def latest(self, partition: int, seen: tuple[int, int], epoch: int, high_watermark: int) -> None:
        """Check the high watermark of an answer against the highest one that the reader has received before."""
        if high_watermark < seen[1] and self.partitions[partition].unclean_epoch < 0:
            raise LatestRises(f"{high_watermark} in epoch {epoch} after {seen[1]} in epoch {seen[0]}")


def _check_times(before: Cell, after: Cell) -> None:
    """Check the append times of two successive cells (protocol section 6, rule 4)."""
    if 0 < before.append_time_us - after.append_time_us <= STEP_US_MAX:
        raise TimesRise(f"{after} follows {before}")


def kept_in_judge(epoch: int, registration: Any, record: PartitionRecord, alone: bool) -> bool:
    """Return whether a restarted voter has kept everything, as the judge computes it independently (quorum Q7)."""
    directory = next(iter(registration.directories), None)
    if directory is None or directory.last_broker_epoch < epoch:
        return False
    since = registration.intact_since
    is_synced = record.durability is DurabilityState.SYNCED
    return alone or is_synced or (since is not None and since <= epoch)
