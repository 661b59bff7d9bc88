"""Interrupts rounds of cleaning at every change of the disk, and compares what readers see with the full log.

Each seed determines one history of a compacted partition: batches of all codecs, leader epochs, producers and
transactions, and the sizes of windows, key map and segments. The disk is copied for each of its changes, and two
cleanings of the log are interrupted at this change, once by a loss of power and once by a kill of the process. After
each interruption the log is opened again, and is cleaned to its end. It must have the newest record of each key of the
full log at the same offset and time, find the first record of any time, and remember the same producers.

`python cleaning_cuts.py --histories 40 --seed 1` prints a JSON report and exits with 1 when a record was lost or has
reappeared. With `--without file_sync`, `folder_sync` or `rename_order` the disk breaks the named promise, and the run
must fail.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/brokers"))

from cleaning_kit import KeyedBatches, check_covered, clean_log, committed, newest, random_history, roll
from fairlead_api.batch.batches import Record, decode_records
from fairlead_api.batch.header import Codec, read_header
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import ProducerId, TimestampUs
from fairlead_broker.compaction import windows
from fairlead_broker.compaction.key_map import BUFFER_BYTES_MIN, SLOT_BYTES
from fairlead_broker.log import LogDirectory, PartitionLog
from fairlead_broker.producers.entries import KeyEntry, ProducerEntry
from log_kit import CLUSTER, DIRECTORY, FIRST_TIME_US, PARTITION, TOPIC, SteppingClock, begin, read_all
from lying_disk import Losses, LyingDisk, PowerCut, Promises

LATER_US: Final = FIRST_TIME_US + 10**12
"""Time after the horizon of every tombstone."""
WINDOW_ROWS: Final = (1, 7, windows.ROWS_MAX)
BUFFER_BYTES: Final = (16 * SLOT_BYTES, 64 * SLOT_BYTES, BUFFER_BYTES_MIN)
SEGMENT_BYTES: Final = (4000, 16_000, 1 << 20)
KEYS: Final = (3, 12, 60)
SIZES: Final = 3
"""Number of values of each size."""
ROUNDS_MAX: Final = 100
LOOKUPS: Final = 8
"""Number of times that each check looks up; the checks of a history look up different times."""


class Lost(AssertionError):
    """A log that differs from the full log in what readers see."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that decide into which windows, rounds and groups a cleaning is divided."""

    window_rows: int = windows.ROWS_MAX
    buffer_bytes: int = BUFFER_BYTES_MIN
    segment_bytes: int = 1 << 20
    keys: int = 12

    @classmethod
    def numbered(cls, number: int) -> Sizes:
        """Return the sizes of one history of a run.

        Three consecutive histories have every value of each size. Nine have every pair of a window, a key map and a
        segment, and 27 also every pair of one of them with a number of keys.
        """
        turn = number // SIZES
        return cls(
            WINDOW_ROWS[number % SIZES],
            BUFFER_BYTES[(number + turn) % SIZES],
            SEGMENT_BYTES[(number + 2 * turn) % SIZES],
            KEYS[(number + turn // SIZES) % SIZES],
        )


class History:
    """A disk with the full log of a partition, and what readers of the log see."""

    def __init__(self, rng: random.Random, sizes: Sizes, batches: int) -> None:
        """Write a random history of three closed parts. `batches`: number of batches of each part."""
        self.sizes = sizes
        self.disk = LyingDisk()
        directory, log = self.opened(self.disk)
        begin(log)
        writer = KeyedBatches(log)
        for _ in range(3):
            random_history(writer, rng, batches, keys=sizes.keys)
            roll(log)
        self.contents = contents_of(log)
        self.records = committed(log)
        self.newest = newest(self.records)
        self.deleted = {each.key for each in self.records} - self.newest.keys() - {None}
        self.producers = producers_of(log)
        self.lookups = 0
        directory.close(True)

    def opened(self, disk: LyingDisk) -> tuple[LogDirectory, PartitionLog]:
        """Open the data directory on a disk, and its partition."""
        directory = LogDirectory.open(
            Path("/data"),
            cluster_id=CLUSTER,
            broker_id=1,
            clock=SteppingClock(),
            new_directory_id=DIRECTORY,
            storage=disk,
        )
        config = TopicConfig(cleanup_policy="compact", segment_bytes=self.sizes.segment_bytes)
        return directory, directory.open_partition(TOPIC, PARTITION, config)

    def clean(self, log: PartitionLog, now_us: int, disk: LyingDisk, removal_limit: int = 0) -> None:
        """Clean a log to its end, in as many rounds as its map of keys needs."""
        if log.segments[0].growing:
            raise Lost("the closed segments have gone")
        for _ in range(ROUNDS_MAX):
            limits = {"removal_limit": removal_limit, "buffer_bytes": self.sizes.buffer_bytes}
            if clean_log(log, now_us, disk, **limits).until >= log.segments[-1].base_offset:
                return
        msg = f"{ROUNDS_MAX} rounds have cleaned to {log.cleaning.cleaned} of {log.end_offset}"
        raise Lost(msg)

    def clean_twice(self, disk: LyingDisk, change: int) -> tuple[bool, bool]:
        """Clean the log, and again after the horizons of its tombstones; interrupt this at a change of the disk.

        Returns whether the cleaning was interrupted, and whether the second cleaning had begun.
        """
        directory, log = self.opened(disk)
        disk.cut_at = disk.operations + change
        is_second = False
        try:
            self.clean(log, FIRST_TIME_US, disk)
            is_second = True
            self.clean(log, LATER_US, disk, log.end_offset)
            directory.write_checkpoint()
        except PowerCut:
            return True, is_second
        return False, is_second

    def check(self, log: PartitionLog, *, deletes: bool) -> None:
        """Check that readers see the newest records of the full log. `deletes`: whether all tombstones must stay."""
        kept = committed(log)
        check_covered(log)
        found = newest(kept)
        expected = None if log.damaged else self.newest
        if found != expected:
            msg = f"the newest records are {found}, not {expected}; damaged: {log.damaged}"
            raise Lost(msg)
        if not set(map(repr, kept)) <= set(map(repr, self.records)):
            raise Lost("a record has changed")
        if deletes and not self.deleted <= {record.key for record in kept}:
            raise Lost("a tombstone has gone before its horizon")
        if producers_of(log) != self.producers:
            msg = f"the state of producers is {producers_of(log)}, not {self.producers}"
            raise Lost(msg)
        self.check_times(log)

    def check_times(self, log: PartitionLog) -> None:
        """Look up some times: each must find the first record in the log at or after the time."""
        left = records_of(log)
        times = sorted({record.timestamp_us + step for record in left for step in (0, 1)})
        step = len(times) // LOOKUPS + 1
        for time_us in times[self.lookups % step :: step]:
            expected = next(((r.offset, r.timestamp_us) for r in left if r.timestamp_us >= time_us), None)
            found = log.offset_for_time(TimestampUs(time_us))
            if found != expected:
                msg = f"time {time_us} is found at {found}, not at {expected}"
                raise Lost(msg)
        self.lookups += 1

    def interrupt(
        self, change: int, rng: random.Random, losses: Losses, promises: Promises, *, kill: bool
    ) -> bool:
        """Interrupt the cleaning at a change, and check the log. Returns False after the last change."""
        disk = copy.deepcopy(self.disk)
        disk.losses, disk.promises = losses, promises
        was_cut, is_second = self.clean_twice(disk, change)
        disk = disk.restart() if kill else disk.cut(rng)
        directory, log = self.opened(disk)
        self.check(log, deletes=not is_second)
        self.clean(log, LATER_US + change, disk, log.end_offset)
        self.check(log, deletes=False)
        left = [name for name in disk.list_files(log.folder) if name.endswith((".cleaned", ".swap"))]
        if left:
            msg = f"files are left: {left}"
            raise Lost(msg)
        directory.close(True)
        _, log = self.opened(disk.restart())
        self.check(log, deletes=False)
        return was_cut


def producers_of(log: PartitionLog) -> tuple[dict[ProducerId, ProducerEntry], dict[bytes, KeyEntry], int]:
    """Return the producers and idempotency keys that a log remembers, and the number of open transactions."""
    state = log.producers.state
    return dict(state.producers), dict(state.keys), len(state.transactions)


def records_of(log: PartitionLog) -> list[Record]:
    """Return every record of a log, including records of aborted transactions that no round has removed yet."""
    return decode_records(read_all(log))


def contents_of(log: PartitionLog) -> Counter[str]:
    """Return the numbers of batches of each codec, of leader epochs, of transactional batches and of markers."""
    data, at = memoryview(read_all(log)), 0
    counts, epochs = Counter[str](), set[int]()
    while at < len(data):
        header = read_header(data, at)
        at += header.total_bytes
        epochs.add(header.leader_epoch)
        counts["markers" if header.is_control else f"batches {Codec(header.codec).name.lower()}"] += 1
        counts["transactional batches"] += header.is_transactional and not header.is_control
    counts["leader epochs"] = len(epochs)
    return counts


@contextmanager
def windows_of(rows: int) -> Iterator[None]:
    """Divide cleanings into windows of this number of records."""
    before, windows.ROWS_MAX = windows.ROWS_MAX, rows  # type: ignore[misc]
    try:
        yield
    finally:
        windows.ROWS_MAX = before  # type: ignore[misc]


def interrupt_all(
    seed: int,
    sizes: Sizes,
    losses: Losses,
    promises: Promises,
    *,
    batches: int = 25,
    stride: int = 1,
) -> tuple[int, Counter[str]]:
    """Interrupt the cleaning of one history at every change, or at every `stride`-th.

    Returns the number of changes, and the contents of the history. Raises `Lost`.
    """
    rng = random.Random(seed)
    history = History(rng, sizes, batches)
    change = 0
    with windows_of(sizes.window_rows):
        while True:
            change += stride
            cut = history.interrupt(change, rng, losses, promises, kill=False)
            killed = history.interrupt(change, rng, losses, promises, kill=True)
            if not cut and not killed:
                return change, history.contents


def interrupt_history(number: int, seed: int, promises: Promises) -> dict[str, Any]:
    """Interrupt the cleaning of one history of a run at every change, and return its report."""
    sizes, losses, counts, lost = Sizes.numbered(number), Losses(), Counter[str](), None
    try:
        changes, contents = interrupt_all(seed + number, sizes, losses, promises)
        counts += Counter(histories=1, interruptions=2 * changes) + contents
        counts.update(f"{field.name} {getattr(sizes, field.name)}" for field in fields(sizes))
    except Exception:  # noqa: BLE001 - any error of the log is a finding
        lost = traceback.format_exc(limit=-6)
    at = {"seed": seed + number, **asdict(sizes)} if lost else None
    return {"counts": counts, "losses": Counter(asdict(losses)), "lost": lost, "at": at}


def run(histories: int, seed: int, promises: Promises, processes: int = 1) -> dict[str, object]:
    """Interrupt the cleanings of some histories up to the first finding, and return the report."""
    counts, losses = Counter[str](), Counter[str]()
    lost = at = None
    work = partial(interrupt_history, seed=seed, promises=promises)
    with ProcessPoolExecutor(processes) as pool:
        for report in pool.map(work, range(histories)):
            counts += report["counts"]
            losses += report["losses"]
            lost, at = report["lost"], report["at"]
            if lost:
                pool.shutdown(cancel_futures=True)
                break
            sys.stderr.write(
                f"{counts['histories']} of {histories} histories, {counts['interruptions']} interruptions\n"
            )
    return {
        "seed": seed,
        "counts": dict(sorted(counts.items())),
        "losses": dict(losses),
        "lost": lost,
        "at": at,
    }


def main() -> int:
    """Run the program; return 1 if a record was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--without", choices=[each.name for each in fields(Promises)])
    options = parser.parse_args()
    promises = Promises(**({options.without: False} if options.without else {}))
    report = run(options.histories, options.seed, promises, options.processes)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return int(report["lost"] is not None)


if __name__ == "__main__":
    sys.exit(main())
