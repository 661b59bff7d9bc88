"""A world of replicas of a compacted partition, with real logs on disks that lose unsynced changes.

Leaders write, followers copy, each replica cleans its own log at random times, and power is cut at any change to a
disk, even in the middle of a round. Replicas may be away for longer than `delete.retention.ms`, be replaced by empty
ones, and become leaders. In some worlds, leaders also write transactions that are aborted. The shell of followers is
reimplemented here; production code decides which batches a round writes, how a group of segments is swapped, and how a
follower continues. The invariants are in `judge`.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cleaning_kit import KeyedBatches, clean_beside, committed
from compacted.judge import (
    History,
    OffsetsCovered,
    check_agreement,
    check_log,
    check_reader,
    check_records,
)
from fairlead_api.batch.batches import Record, decode_records
from fairlead_api.batch.header import Codec
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset, ProducerId, TimestampUs
from fairlead_broker.compaction import removal
from fairlead_broker.compaction.removal import Copying
from fairlead_broker.log import BadCopy, LogCut, LogDamaged, LogDirectory, PartitionLog
from fairlead_broker.log.cleaning_plan import plan_round
from fairlead_broker.log.copies import first_offsets
from log_kit import CLUSTER, DIRECTORY, FIRST_TIME_US, PARTITION, TOPIC, SteppingClock
from lying_disk import Losses, LyingDisk, PowerCut
from simulator.judge import Liveness, violation_of

HOUR_US: Final = 3_600_000_000
RETENTION_US: Final = 24 * HOUR_US
CONFIG: Final = TopicConfig(cleanup_policy="compact", segment_bytes=1 << 20)
REPLICAS: Final = 3
STEPS: Final = 120
SETTLING_COPIES: Final = 400
CHECKED_STEPS: Final = 4
"""Number of steps between two checks of all replicas."""
PRODUCER: Final = 7
"""Id of the producer whose transactions are aborted."""
KEYS: Final = tuple(b"k%d" % number for number in range(3))


@dataclass
class Replica:
    """One replica and its disk."""

    name: str
    disk: LyingDisk
    log: PartitionLog
    is_alive: bool = True
    leader_removed: int = 0


@dataclass
class Reader:
    """A reader that builds a table from the start of the leader's log."""

    begun_us: int
    position: int = 0
    shown: dict[bytes, Record] = field(default_factory=dict)


class World:
    """One run, determined by its seed."""

    def __init__(self, seed: int, *, has_transactions: bool = False, copies_in_rounds: bool = False) -> None:
        """Create empty replicas, the first of which leads."""
        self.rng = random.Random(seed)
        self.losses = Losses()
        self.now_us = FIRST_TIME_US
        self.counts: Counter[str] = Counter()
        self.replicas = [self._opened(f"replica {number}", LyingDisk()) for number in range(REPLICAS)]
        self.isr = set(range(REPLICAS))
        self.leader = 0
        self.epoch = 0
        self.high_watermark = 0
        self.has_transactions = has_transactions
        self.copies_in_rounds = copies_in_rounds
        self.transactions = 0
        self.copied: dict[int, int] = {}
        """Log end offset of each replica, as far as the current leader knows."""
        self.history = History()
        self.reader: Reader | None = None
        self._lead(0)

    def run(self) -> None:
        """Take random steps, and check the replicas after some of the steps. Raises the violated invariant."""
        try:
            self._run()
        except LogDamaged as damaged:
            raise OffsetsCovered(str(damaged)) from damaged

    def _run(self) -> None:
        steps = {
            self.write: 7,
            self.copy: 12,
            self.roll: 7,
            self.clean: 9,
            self.wait: 3,
            self.read: 4,
            self.die: 1.5,
            self.return_: 2,
            self.replace: 0.3,
            self.elect: 1,
            self.forget: 1.5,
        }
        if self.has_transactions:
            steps[self.abort] = 1.5
        for number in range(STEPS):
            [step] = self.rng.choices(list(steps), list(steps.values()))
            step()
            self._advance()
            if number % CHECKED_STEPS == 0:
                self.check()
        self.settle()
        self.check()

    def check(self) -> None:
        """Check the invariants."""
        complete = {}
        for number, replica in enumerate(self.replicas):
            if replica.is_alive:
                stable = _stable_offset(replica.log, self.high_watermark)
                known_end = min(self.high_watermark, replica.log.end_offset) if number in self.isr else 0
                check_log(self.history, replica.log, known_end, replica.name)
                if number in self.isr:
                    check_records(self.history, replica.log, stable, replica.name)
                    if stable == self.high_watermark:
                        complete[replica.name] = replica.log
        check_agreement(complete, self.high_watermark)

    # -- steps

    def write(self, *, deletes: bool = False) -> None:
        """Append a batch to the leader's log."""
        replica = self.replicas[self.leader]
        if not replica.is_alive:
            return
        rows = [
            (
                self.rng.choice(KEYS),
                None if deletes or self.rng.random() < 0.25 else b"%d" % self.rng.getrandbits(30),
            )
            for _ in range(self.rng.randint(1, 3))
        ]
        batches = KeyedBatches(replica.log, self.epoch, self.now_us)
        codec = self.rng.choice(list(Codec))
        base = batches.append(
            rows, codec=codec, append_time=self.rng.random() < 0.3, headers=self.rng.random() < 0.2
        )
        self.now_us = batches.time_us
        replica.log.checkpoint_high_watermark = Offset(self.high_watermark)
        replica.log.sync()
        self.history.records |= {each.offset: each for each in committed(replica.log, base)}

    def abort(self) -> None:
        """Append a batch of a transaction, perhaps another batch, and the marker that aborts the transaction."""
        replica = self.replicas[self.leader]
        if not replica.is_alive:
            return
        self.transactions += 1
        batches = KeyedBatches(replica.log, self.epoch, self.now_us)
        rows = [(self.rng.choice(KEYS), b"aborted %d" % number) for number in range(self.rng.randint(1, 3))]
        first = batches.transact(PRODUCER, self.transactions, rows)
        self.now_us = batches.time_us
        if self.rng.random() < 0.5:
            self.write()
        if self.rng.random() < 0.3:
            replica.log.roll()
        batches.time_us = self.now_us
        batches.end(PRODUCER, self.transactions, first, commit=False)
        self.now_us = batches.time_us
        replica.log.checkpoint_high_watermark = Offset(self.high_watermark)
        replica.log.sync()
        self.counts["aborted"] += 1

    def copy(self, number: int | None = None) -> None:
        """Let a follower copy from the leader."""
        number = self.rng.randrange(REPLICAS) if number is None else number
        leader, follower = self.replicas[self.leader], self.replicas[number]
        if follower is leader or not (follower.is_alive and leader.is_alive):
            return
        self._truncate(follower.log, leader.log)
        end = follower.log.end_offset
        found, base = None, None
        if end < leader.log.end_offset:
            found = leader.log.read(end, self.rng.choice((1, 700)), leader.log.end_offset).data
            base, _ = first_offsets(found)
        state, leader_removed = follower.log.cleaning, leader.log.cleaning.lacks_below
        how = removal.copying(end, state.removed, leader_removed, base, own_removing=state.removing)
        follower.leader_removed = leader_removed
        if how is Copying.COPY_AGAIN and number not in self.isr:
            self.counts["copied again"] += follower.log.end_offset > 0
            follower.log.restart_at(leader.log.log_start_offset)
            self.take_removed(follower)
        elif how is Copying.LOWER:
            self.counts["lowered"] += 1
            lowered = removal.lowered_removed(end, leader_removed, base)
            follower.log.lower_removed(Offset(lowered))
        if found is not None and base is not None and end == follower.log.end_offset:
            self.counts["cut to a merged batch"] += base < end
            may_cut = number not in self.isr
            try:
                follower.log.append_copies(found, end, LeaderEpoch(self.epoch), may_cut=may_cut)
            except BadCopy:
                # The follower asks for the records again.
                self.counts["bad copies"] += 1
            except LogCut:
                # The leader's batch begins inside a batch of the follower, which continues at the base of that batch.
                self.counts["cut again"] += 1
            follower.log.sync()
        self.copied[number] = follower.log.end_offset
        follower.log.checkpoint_high_watermark = Offset(min(self.high_watermark, follower.log.end_offset))
        if follower.log.end_offset == leader.log.end_offset:
            self.isr.add(number)

    def roll(self, number: int | None = None) -> None:
        """Close the last segment of a replica's log."""
        replica = self.replicas[self.rng.randrange(REPLICAS) if number is None else number]
        if replica.is_alive:
            replica.log.roll()
            replica.log.sync()

    def clean(self, number: int | None = None) -> None:
        """Run a cleaning round at a replica; the power may fail during the round."""
        number = self.rng.randrange(REPLICAS) if number is None else number
        replica = self.replicas[number]
        log = replica.log
        if not replica.is_alive:
            return
        if not plan_round(log, log.stable_offset(), TimestampUs(self.now_us)).range.total_bytes:
            return
        if self.rng.random() < 0.25:
            replica.disk.cut_at = replica.disk.operations + self.rng.randint(1, 40)
        limit = replica.leader_removed
        if number == self.leader:
            present = [each.log.end_offset for each in self.replicas if each.is_alive]
            limit = min(self.high_watermark, *present)
        before = log.cleaning.removed
        is_copying = self.copies_in_rounds and number != self.leader and self.rng.random() < 0.3

        def copy() -> None:
            """Let a follower copy while its round runs, which may cut its log."""
            if is_copying:
                self.copy(number)

        try:
            done = clean_beside(
                log, self.now_us, copy, replica.disk, removal_limit=limit, stable_offset=log.stable_offset()
            )
            self.counts["rounds"] += done is not None
            self.counts["refused swaps"] += done is None
            self.counts["tombstones went"] += log.cleaning.removed > before
        except PowerCut:
            self.counts["cut rounds"] += 1
            self._restart(number)
        replica.disk.cut_at = None

    def wait(self) -> None:
        """Let time pass, up to three times `delete.retention.ms`."""
        self.now_us += self.rng.randint(HOUR_US, 3 * RETENTION_US)

    def read(self) -> None:
        """Let a reader of the leader's log continue, and check its table at the end of the log."""
        leader = self.replicas[self.leader]
        if not leader.is_alive:
            return
        if self.reader is None:
            self.reader = Reader(self.now_us)
        reader = self.reader
        leader.log.load_aborted()
        stable = _stable_offset(leader.log, self.high_watermark)
        for _ in range(3):
            if reader.position < stable:
                found = leader.log.read(Offset(reader.position), 1, stable)
                for piece in leader.log.without_aborted(found) or []:
                    for record in decode_records(piece):
                        if record.offset >= reader.position and record.key is not None:
                            reader.shown.pop(record.key, None)
                            if record.value is not None:
                                reader.shown[record.key] = record
                reader.position = found.next_offset
        if reader.position >= stable:
            self.reader = None
            if self.now_us - reader.begun_us < RETENTION_US:
                self.counts["readers"] += 1
                check_reader(self.history, reader.shown, reader.position)

    def die(self) -> None:
        """Cut the power of a replica, which stays down."""
        number = self.rng.randrange(REPLICAS)
        if sum(each.is_alive for each in self.replicas) > 1:
            self.replicas[number].is_alive = False

    def return_(self) -> None:
        """Start a replica that was down."""
        number = self.rng.randrange(REPLICAS)
        if not self.replicas[number].is_alive:
            self._restart(number)

    def replace(self) -> None:
        """Replace a replica outside the isr with an empty one."""
        number = self.rng.randrange(REPLICAS)
        if number not in self.isr:
            self.replicas[number] = self._opened(self.replicas[number].name, LyingDisk())

    def elect(self) -> None:
        """Elect another leader from the isr."""
        able = [each for each in sorted(self.isr) if self.replicas[each].is_alive and each != self.leader]
        if able:
            self._lead(self.rng.choice(able))

    def forget(self) -> None:
        """Delete a key while a follower is away for longer than the tombstone is kept, then change the leader."""
        away = self.rng.choice([each for each in range(REPLICAS) if each != self.leader])
        leader = self.replicas[self.leader]
        if not leader.is_alive or self.replicas[self.leader].log.end_offset == 0:
            return
        self.replicas[away].is_alive = False
        self._advance()
        for tombstone in (True, False):
            self.write(deletes=tombstone)
            for number in range(REPLICAS):
                if self.replicas[number].is_alive:
                    self.copy(number)
            self._advance()
        for _ in range(2):
            self.roll(self.leader)
            self.clean(self.leader)
            self.now_us += 2 * RETENTION_US
        self._restart(away)
        for _ in range(self.rng.randint(0, 8)):
            self.copy(away)
            self._advance()
            if self.rng.random() < 0.5:
                self.elect()

    def settle(self) -> None:
        """Start every replica, and let followers copy until all are complete. Raises `Liveness`."""
        for number in (self.leader, *range(REPLICAS)):
            if not self.replicas[number].is_alive:
                self._restart(number)
        for _ in range(SETTLING_COPIES):
            for number in range(REPLICAS):
                self.copy(number)
            self._advance()
            if len(self.isr) == REPLICAS and self.high_watermark == self.replicas[self.leader].log.end_offset:
                return
        raise Liveness(f"only {sorted(self.isr)} are complete")

    # -- below the steps

    def take_removed(self, follower: Replica) -> None:
        """Let a follower that resumes copying take over the leader's `removed` offset."""
        follower.log.take_removed(Offset(follower.leader_removed))

    def _advance(self) -> None:
        """Remove dead followers from the isr, and commit the records that every replica in the isr has."""
        if not self.replicas[self.leader].is_alive:
            return
        self.isr = {each for each in self.isr if self.replicas[each].is_alive}
        log = self.replicas[self.leader].log
        self.copied[self.leader] = log.end_offset
        self.high_watermark = max(self.high_watermark, min(self.copied.get(each, 0) for each in self.isr))
        log.checkpoint_high_watermark = Offset(self.high_watermark)

    def _lead(self, number: int) -> None:
        self.counts["leaders"] += 1
        self.leader, self.reader, self.copied = number, None, {}
        self.epoch += 1
        log = self.replicas[number].log
        log.begin_epoch(LeaderEpoch(self.epoch))
        self._abort_open()
        self.history.lead(log, self.high_watermark)

    def _abort_open(self) -> None:
        """Let a new leader append the marker of a transaction whose marker it does not have."""
        log = self.replicas[self.leader].log
        state = log.producers.state
        first, entry = state.transactions.first_offsets.get(ProducerId(PRODUCER)), state.producer(PRODUCER)
        if first is not None and entry is not None:
            batches = KeyedBatches(log, self.epoch, self.now_us)
            batches.end(PRODUCER, entry.epoch, first, commit=False)
            self.now_us = batches.time_us
            log.checkpoint_high_watermark = Offset(self.high_watermark)
            log.sync()
            self.counts["aborted by a new leader"] += 1

    def _truncate(self, log: PartitionLog, leader: PartitionLog) -> None:
        """Cut a follower's log at the last offset that it has in common with the leader's log."""
        while log.last_epoch is not None:
            end = leader.end_offset_for_epoch(log.last_epoch)
            assert end is not None, "a leader knows every epoch up to its own"
            own = log.end_offset_for_epoch(end.epoch)
            stop = min(end.end_offset, log.end_offset if own is None else own.end_offset)
            if stop >= log.end_offset:
                return
            log.truncate_to(Offset(stop))

    def _restart(self, number: int) -> None:
        """Start a replica with the data that its disk has kept. A leader leads again; a follower leaves the ISR."""
        replica = self.replicas[number]
        self.replicas[number] = self._opened(replica.name, replica.disk.cut(self.rng))
        if number != self.leader:
            self.isr.discard(number)
        else:
            self._lead(number)

    def _opened(self, name: str, disk: LyingDisk) -> Replica:
        disk.losses = self.losses
        directory = LogDirectory.open(
            Path("/data"),
            cluster_id=CLUSTER,
            broker_id=1,
            clock=SteppingClock(),
            new_directory_id=DIRECTORY,
            storage=disk,
        )
        return Replica(name, disk, directory.open_partition(TOPIC, PARTITION, CONFIG))


def _stable_offset(log: PartitionLog, high_watermark: int) -> Offset:
    """Return the end of the offsets that a reader of committed records may get from a log."""
    return log.producers.state.transactions.copy().stable_offset(Offset(high_watermark), log.log_start_offset)


@dataclass(frozen=True)
class Verdict:
    """Outcome of a run."""

    seed: int
    violation: Exception | None
    counts: Counter[str]


def run(seed: int, *, has_transactions: bool = False, copies_in_rounds: bool = False) -> Verdict:
    """Run the world for a seed, without or with aborted transactions, and with copies before the swaps of rounds."""
    world = World(seed, has_transactions=has_transactions, copies_in_rounds=copies_in_rounds)
    return Verdict(seed, violation_of(world.run), world.counts)
