"""Simulates many power cuts of the log's disk, and compares the remaining log with the acknowledged batches.

Each seed determines one run: a machine with a `LyingDisk` performs the log operations of a broker (append, roll, sync
one partition or the volume, begin epochs, write checkpoints, truncate, move the log start, create and delete topics,
stop and start) until the power is cut in the middle of an operation, often during recovery itself. After the cut, the
log is opened on the data that the disk kept, and must have every acknowledged batch once, in order and byte for byte.

`python power_cuts.py --cycles 2000 --seed 1` prints a JSON report and exits with 1 when a batch was lost. With
`--without file_sync`, `folder_sync` or `rename_order` the disk breaks the named promise, and the run must fail.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/brokers"))

from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.batch.header import STAMP_BYTES, iterate_headers, make_stamp, read_header
from fairlead_api.configuration import Durability, TopicConfig
from fairlead_api.identifiers import BrokerEpoch, LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId
from fairlead_broker.log import LogDirectory, PartitionLog, StampedBatch
from fairlead_broker.log.syncing import sync_volume
from log_kit import CLUSTER, DIRECTORY, SteppingClock
from lying_disk import Losses, LyingDisk, PowerCut, Promises

ROOT: Final = Path("/data")
CUTS_PER_DISK: Final = 12
"""Number of cuts after which the run continues with an empty disk, so that cuts also hit logs with few records.
"""
OPERATIONS_MAX: Final = 250
TOPICS_MAX: Final = 4
KILL_SHARE: Final = 0.25
"""Fraction of the interruptions that only kill the process, so that all written bytes remain, durable or not."""


class Lost(AssertionError):
    """The log violated a guarantee."""


def contents() -> list[bytes]:
    """Return unstamped batches of many sizes, from one small record to several pages."""
    made = []
    for number in range(24):
        records, value_bytes = 1 + number % 5, (10, 90, 700, 3000)[number % 4]
        values = [bytes([65 + number]) * (value_bytes + number)] * records
        made.append(encode(record_batch(values, default_timestamp_us=1_700_000_000_000_000)).to_bytes())
    return made


@dataclass(slots=True)
class Stored:
    """A batch that was appended."""

    base_offset: int
    next_offset: int
    data: bytes
    append_time_us: int


@dataclass(slots=True)
class Witness:
    """State that one partition must still have after a cut: its acknowledged batches, log start and epochs."""

    topic_id: TopicId
    config: TopicConfig
    batches: list[Stored] = field(default_factory=list)
    """Appended batches that may exist, in order; the last ones may be incomplete."""
    acknowledged: int = 0
    """Offset below which every batch was synced before its acknowledgement."""
    log_start: int = 0
    """Smallest possible log start."""
    log_start_asked: int = 0
    """Largest possible log start."""
    log_start_highest: int = 0
    """Highest requested log start; epochs that ended before this offset may be missing."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, start offset) of started epochs."""
    epochs_asked: list[tuple[int, int]] = field(default_factory=list)
    """Later epochs whose start was interrupted; they may be stored or not."""
    cut_asked: int | None = None
    """Offset of a truncation that may have happened."""
    log: PartitionLog | None = None

    def check(self, log: PartitionLog) -> int:
        """Compare an opened log with this witness, and forget the batches that were not kept. Return their number."""
        start, end = log.log_start_offset, log.end_offset
        self._expect(
            self.log_start <= start <= self.log_start_asked,
            f"the log starts at {start}, not {self.log_start}",
        )
        self._check_epochs(log)
        kept, damaged = [], log.damaged
        for batch in self.batches:
            inside = any(d.first_offset <= batch.base_offset < d.next_good_offset for d in damaged)
            if batch.next_offset <= start:
                continue
            if inside or batch.base_offset >= end:
                lost = f"offset {batch.base_offset} is lost, acknowledged up to {self.acknowledged}"
                self._expect(batch.base_offset >= self._promised(), f"{lost}; end {end}, damaged {damaged}")
            else:
                kept.append(batch)
        self._check_reads(log, kept)
        self._check_times(log, kept)
        gone = len(self.batches) - len(kept)
        self.batches, self.log_start, self.log_start_asked = kept, start, start
        found = [(entry.epoch, entry.start_offset) for entry in log.leader_epochs]
        self.epochs = [entry for entry in self.epochs if entry in found]
        self.epochs_asked = [entry for entry in self.epochs_asked if entry in found]
        self.cut_asked = None
        self.log = log
        return gone

    def _promised(self) -> int:
        return self.acknowledged if self.cut_asked is None else min(self.acknowledged, self.cut_asked)

    def _check_epochs(self, log: PartitionLog) -> None:
        found = [(entry.epoch, entry.start_offset) for entry in log.leader_epochs]
        told = [*self.epochs, *self.epochs_asked]
        # An epoch without batches may be forgotten when the log was truncated before it.
        ends = [*(start for _, start in told[1:]), log.end_offset]
        forgettable = {entry for entry, end in zip(told, ends, strict=False) if end < self.log_start_highest}
        needed = [each for each in self.epochs if each[1] <= log.end_offset and each not in forgettable]
        if self.cut_asked is not None:
            needed = [entry for entry in needed if entry[1] < self.cut_asked]
        self._expect(
            [e for e in told if e in found] == found and set(needed) <= set(found),
            f"leader epochs {found}, begun were {told}",
        )

    def _check_reads(self, log: PartitionLog, kept: list[Stored]) -> None:
        expected = b"".join(batch.data for batch in kept)
        found, at = bytearray(), log.log_start_offset
        ranges = iter(log.damaged)
        damage = next(ranges, None)
        while at < log.end_offset:
            while damage is not None and damage.next_good_offset <= at:
                damage = next(ranges, None)
            if damage is not None and damage.first_offset <= at:
                at = damage.next_good_offset
                continue
            read = log.read(at, 5000, log.end_offset)
            self._expect(read.next_offset > at, f"a read at {at} of {log.end_offset} made no progress")
            found += read.data
            at = read.next_offset
        if found != expected:
            offsets = [batch.base_offset for batch in kept]
            there = [header.base_offset for _, header in iterate_headers(found)]
            same = f"{len(found)} bytes with batches {there} are read, {len(expected)} with {offsets} were appended"
            self._expect(
                False, f"{same}; log {log.log_start_offset} to {log.end_offset}, damaged {log.damaged}"
            )

    def _check_times(self, log: PartitionLog, kept: list[Stored]) -> None:
        if kept and not log.damaged:
            batch = kept[len(kept) // 2]
            found = log.offset_for_time(TimestampUs(batch.append_time_us))
            wanted = (max(batch.base_offset, log.log_start_offset), batch.append_time_us)
            self._expect(found == wanted, f"the time of {wanted} leads to {found}")

    def _expect(self, fine: bool, otherwise: str) -> None:
        if not fine:
            message = f"{self.topic_id}: {otherwise}"
            raise Lost(message)


class Machine:
    """A broker's log on a lying disk, through any number of starts."""

    def __init__(self, rng: random.Random, disk: LyingDisk, counts: Counter[str]) -> None:
        self._rng = rng
        self._disk = disk
        self._counts = counts
        self._clock = SteppingClock()
        self._contents = contents()
        self._topics: list[Witness] = []
        self._deleted: set[TopicId] = set()
        self._made = 0
        self._epoch = 0
        self._stopped_in_order = False
        self._directory: LogDirectory | None = None

    # ------------------------------------------------------------------------------------------ start and end

    def live(self) -> None:
        """Start, work until the power is cut or the process is killed, and drop the data that the disk forgets."""
        self._disk.cut_at = self._rng.randint(1, OPERATIONS_MAX)
        try:
            self.start()
            while True:
                self.work()
        except PowerCut:
            pass
        self._directory = None
        if self._rng.random() < KILL_SHARE:
            self._counts["kills"] += 1
            self._disk = self._disk.restart()
        else:
            self._counts["cuts"] += 1
            self._disk = self._disk.cut(self._rng)

    def start(self) -> None:
        """Open the directory and every partition, and check their contents."""
        self._epoch += 1
        stopped_in_order, self._stopped_in_order = self._stopped_in_order, False
        directory = LogDirectory.open(
            ROOT,
            cluster_id=CLUSTER,
            broker_id=1,
            clock=self._clock,
            new_directory_id=DIRECTORY,
            storage=self._disk,
        )
        if directory.corrupt:
            raise Lost(str(directory.corrupt))
        if stopped_in_order and not directory.was_clean:
            message = "the stop was clean, but the start does not treat it as clean"
            raise Lost(message)
        directory.set_broker_epoch(BrokerEpoch(self._epoch))
        self._directory = directory
        for topic in self._topics:
            self._open(topic)
        strays = directory.mark_strays({topic.topic_id for topic in self._topics} | self._deleted)
        if strays:
            message = f"strays: {strays}"
            raise Lost(message)
        self._counts["starts"] += 1

    def _open(self, topic: Witness) -> None:
        assert self._directory is not None
        log = self._directory.open_partition(topic.topic_id, PartitionIndex(0), topic.config)
        gone = topic.check(log)
        self._counts["batches not kept"] += gone
        self._counts["torn tails cut"] += len(log.recovery_report.cuts)
        self._counts["damaged ranges, none acknowledged"] += len(log.recovery_report.damaged)
        self._counts["batches held against the log"] += len(topic.batches)
        if log.synced_offset < log.end_offset:
            log.sync()
        self._acknowledge(topic)

    # ------------------------------------------------------------------------------------------ work

    def work(self) -> None:
        """Perform one operation of a broker."""
        if not self._topics:
            self._create()
        topic = self._rng.choice(self._topics)
        steps = (
            (self._append, 40),
            (self._sync, 16),
            (self._sync_volume, 3),
            (self._checkpoint, 6),
            (self._roll, 3),
            (self._begin_epoch, 3),
            (self._truncate, 2),
            (self._move_log_start, 2),
            (self._create_another, 3),
            (self._delete, 1),
            (self._stop_and_start, 1),
        )
        step = self._rng.choices([step for step, _ in steps], [weight for _, weight in steps])[0]
        step(topic)

    def _append(self, topic: Witness) -> None:
        log = self._log(topic)
        # An epoch whose beginning was interrupted may be in the log, and a leader appends in no earlier epoch.
        if topic.epochs_asked or not topic.epochs or topic.epochs[-1][0] < self._epoch:
            self._begin_epoch(topic)
        group, offset = [], log.end_offset
        for _ in range(self._rng.randint(1, 5)):
            batch = self._stamped(offset, topic.epochs[-1][0])
            data = batch.stamp + bytes(batch.content)
            offset = Offset(batch.last_offset + 1)
            topic.batches.append(Stored(batch.base_offset, offset, data, batch.append_time_us))
            group.append(batch)
        log.append(group)
        self._counts["batches appended"] += len(group)

    def _stamped(self, offset: int, epoch: int) -> StampedBatch:
        self._clock.time_us += 1000
        content = self._rng.choice(self._contents)
        header = read_header(content)
        stamp = make_stamp(header, offset, epoch, self._clock.time_us, 1)
        last_offset = Offset(offset + header.last_offset_delta)
        return StampedBatch(
            stamp,
            memoryview(content)[STAMP_BYTES:],
            Offset(offset),
            last_offset,
            self._clock.time_us,
            len(content),
        )

    def _sync(self, topic: Witness) -> None:
        log = self._log(topic)
        synced = log.sync()
        if synced != log.end_offset:
            message = f"{topic.topic_id}: synced to {synced} of {log.end_offset}"
            raise Lost(message)
        self._acknowledge(topic)

    def _acknowledge(self, topic: Witness) -> None:
        log = self._log(topic)
        before, topic.acknowledged = topic.acknowledged, log.synced_offset
        log.checkpoint_high_watermark = log.synced_offset
        self._counts["records acknowledged"] += max(0, topic.acknowledged - before)

    def _sync_volume(self, topic: Witness) -> None:
        """Sync everything at once, as with many dirty partitions, and append at the same time."""
        points = {id(each): self._log(each).sync_point() for each in self._topics}
        self._append(topic)
        assert self._directory is not None
        self._directory.volume.sync()
        for each in self._topics:
            point = points[id(each)]
            if point is not None:
                self._log(each).mark_synced(point)
            self._acknowledge(each)
        sync_volume([self._log(each) for each in self._topics], self._directory.volume)

    def _checkpoint(self, topic: Witness) -> None:
        del topic
        assert self._directory is not None
        self._directory.write_checkpoint()

    def _roll(self, topic: Witness) -> None:
        self._log(topic).roll_if_due(TimestampUs(self._clock.time_us + topic.config.segment_ms * 1000))

    def _begin_epoch(self, topic: Witness) -> None:
        known = [epoch for epoch, _ in (*topic.epochs, *topic.epochs_asked)]
        epoch = max(self._epoch, *(each + 1 for each in known), 0)
        topic.epochs_asked.append((epoch, self._log(topic).end_offset))
        self._log(topic).begin_epoch(LeaderEpoch(epoch))
        # One sync makes the whole list of epochs durable.
        topic.epochs += topic.epochs_asked
        topic.epochs_asked.clear()

    def _truncate(self, topic: Witness) -> None:
        log = self._log(topic)
        if log.damaged or not topic.batches:
            return
        asked = self._rng.randint(max(topic.log_start, log.end_offset - 12), log.end_offset)
        if asked == log.end_offset:
            return
        topic.cut_asked = min(
            (batch.base_offset for batch in topic.batches if batch.next_offset > asked), default=asked
        )
        # A log start inside a dropped batch moves back to the first offset of the batch.
        topic.log_start = min(topic.log_start, topic.cut_asked)
        end = log.truncate_to(Offset(asked))
        topic.log_start = topic.log_start_asked = log.log_start_offset
        topic.batches = [batch for batch in topic.batches if batch.next_offset <= end]
        topic.epochs = [entry for entry in topic.epochs if entry[1] < end]
        topic.epochs_asked = [entry for entry in topic.epochs_asked if entry[1] < end]
        topic.acknowledged = min(topic.acknowledged, end)
        topic.cut_asked = None
        self._counts["truncations"] += 1

    def _move_log_start(self, topic: Witness) -> None:
        log = self._log(topic)
        topic.log_start_asked = self._rng.randint(log.log_start_offset, log.checkpoint_high_watermark)
        topic.log_start_highest = max(topic.log_start_highest, topic.log_start_asked)
        log.advance_log_start(Offset(topic.log_start_asked))
        topic.log_start = topic.log_start_asked
        topic.batches = [batch for batch in topic.batches if batch.next_offset > topic.log_start]

    def _create_another(self, topic: Witness) -> None:
        del topic
        if len(self._topics) < TOPICS_MAX:
            self._create()

    def _create(self) -> None:
        self._made += 1
        config = TopicConfig(
            segment_bytes=self._rng.choice((3000, 12_000, 60_000)),
            index_interval_bytes=self._rng.choice((0, 500, 4096)),
            segment_ms=self._rng.choice((5, 1000)),
            durability=Durability.SYNCED,
        )
        # The topic exists from here on, because its record is written before any broker creates its folder.
        topic = Witness(TopicId(f"3f1d6c1e-0b6a-4d3c-9b3e-{self._made:012d}"), config)
        self._topics.append(topic)
        self._open(topic)

    def _delete(self, topic: Witness) -> None:
        assert self._directory is not None
        self._topics.remove(topic)
        self._deleted.add(topic.topic_id)
        gone = self._directory.give_up_partition(topic.topic_id, PartitionIndex(0))
        if gone is not None:
            self._directory.remove_given_up(gone)
        self._deleted.discard(topic.topic_id)
        self._counts["topics deleted"] += 1

    def _stop_and_start(self, topic: Witness) -> None:
        del topic
        assert self._directory is not None
        self._directory.close(True)
        for each in self._topics:
            each.acknowledged = self._log(each).end_offset
        self._stopped_in_order = True
        self._directory = None
        self.start()
        self._counts["stops in order"] += 1

    @staticmethod
    def _log(topic: Witness) -> PartitionLog:
        assert topic.log is not None
        return topic.log


def run(
    cycles: int, seed: int, promises: Promises | None = None, progress: bool = False
) -> dict[str, object]:
    """Run `cycles` power cuts; report the counts of effective cuts and the first violated guarantee."""
    rng, counts, losses = random.Random(seed), Counter[str](), Losses()
    machine, lost = None, None
    while counts["cuts"] < cycles and lost is None:
        if machine is None or counts["cuts"] // CUTS_PER_DISK != counts["disks"] - 1:
            counts["disks"] = counts["cuts"] // CUTS_PER_DISK + 1
            machine = Machine(rng, LyingDisk(promises or Promises(), losses), counts)
        try:
            machine.live()
        except Exception as error:  # noqa: BLE001 - every error of the log on a healthy disk is a finding
            where = "".join(traceback.format_exception(error)[-6:])
            lost = f"after {counts['cuts']} cuts: {type(error).__name__}: {error}\n{where}"
        if progress and counts["cuts"] % 100 == 0:
            sys.stderr.write(f"\r{counts['cuts']} of {cycles} cuts")
    return {
        "seed": seed,
        "promises": asdict(promises or Promises()),
        **dict(sorted(counts.items())),
        "losses": asdict(losses),
        "lost": lost,
    }


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    switches = [each.name for each in fields(Promises)]
    parser.add_argument("--without", choices=switches, action="append", default=[])
    arguments = parser.parse_args()
    promises = Promises(**{name: name not in arguments.without for name in switches})
    report = run(arguments.cycles, arguments.seed, promises, progress=sys.stderr.isatty())
    sys.stdout.write(json.dumps(report, indent=1).replace("\\n", "\n") + "\n")
    return 1 if report["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
