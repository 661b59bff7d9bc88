"""Damages the files of a log, reads the log, and checks every batch.

Every trial damages one file of a stopped or killed data directory: segments, indexes, snapshots of producers, leader
epochs, checkpoint, synced offsets, identity, clean marker. Bits are flipped and files are truncated; in segments, whole
batches also change places, are stored twice, or are overwritten by other batches, as after lost and misdirected writes.
The log is opened, read from end to end and at every offset, and scrubbed. A reader checks every batch; each record must
be the stored record of its offset, and no offset may be skipped silently. Every range that is not served must be
reported: by recovery, by a read, by the reader's own check, and in any case by the scrub.

`python bit_flips.py --trials 1000 --seed 1` prints a JSON report and exits with 1 when damage was not noticed, a wrong
record was served, or any error other than a refusal was raised.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/brokers"))

from fairlead_api.batch.batches import Record, decode_records
from fairlead_api.batch.header import HEADER_BYTES, batch_span, iterate_headers
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.log import LogDamaged, LogError, PartitionLog, SegmentScrub
from log_kit import FIRST_TIME_US, BatchMaker, LogBox, begin

BATCHES: Final = 60
RECORDS: Final = 3
CONFIG: Final = TopicConfig(segment_bytes=16_384, index_interval_bytes=2000)
LOST_BYTES: Final = (1, 1, 2, 4, 8, 33, 100, 511, 512, 1000, 4096, 1 << 20)


class Wrong(AssertionError):
    """Damage was not noticed, or a wrong record was served."""


class Origin:
    """An undamaged data directory and its records."""

    def __init__(self, folder: Path, *, clean: bool) -> None:
        self.folder = folder
        self.clean = clean
        box, make = LogBox(folder, CONFIG), BatchMaker(stamp_flags=1)
        log = box.open()
        begin(log)
        for number in range(BATCHES):
            make.append_time_us = FIRST_TIME_US + number * 1000
            make.fill(log, 1, RECORDS, 50 + number * 31 % 900)
            if number == BATCHES // 2:
                begin(log, 5)
                make.leader_epoch = 5
                # A killed broker has synced batches after the last checkpoint, which are as safe as earlier batches.
                log.sync()
                box.opened.write_checkpoint()
        log.sync()
        log.checkpoint_high_watermark = log.end_offset
        self.records = {record.offset: record for record in records_of(log)}
        self.epochs = log.leader_epochs
        if clean:
            box.stop()
        else:
            box.kill()
        self.files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        self.files = [path for path in self.files if path.name != "lock" and (folder / path).stat().st_size]


def records_of(log: PartitionLog) -> list[Record]:
    """Return every record of an undamaged log."""
    read = log.read(log.log_start_offset, 1 << 30, log.end_offset)
    data, at = bytearray(read.data), read.next_offset
    while at < log.end_offset:
        read = log.read(at, 1 << 30, log.end_offset)
        data += read.data
        at = read.next_offset
    batches = [data[start : start + header.total_bytes] for start, header in iterate_headers(data)]
    return [record for batch in batches for record in decode_records(batch)]


def harm(path: Path, rng: random.Random) -> str:
    """Flip one or two bits of a file, truncate it or rearrange its batches; return a description of the change."""
    data = bytearray(path.read_bytes())
    if path.suffix == ".log" and rng.random() < 0.4 and (done := rearrange(data, rng)):
        path.write_bytes(data)
        return done
    if rng.random() < 0.3:
        lost = min(rng.choice(LOST_BYTES), len(data))
        path.write_bytes(data[: len(data) - lost])
        return f"lost its last {lost} bytes"
    begin, length = 0, len(data)
    if path.suffix == ".log" and rng.random() < 0.5:
        # Half of the damage is put in headers, although they are a small part of the bytes, because a header locates
        # the next batch.
        begin, length = rng.choice([start for start, _ in iterate_headers(data)]), HEADER_BYTES
    flips = {8 * begin + rng.randrange(length * 8) for _ in range(rng.choice((1, 1, 2)))}
    for bit in flips:
        data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bits {sorted(flips)} flipped"


def rearrange(data: bytearray, rng: random.Random) -> str:
    """Rearrange whole batches of a segment; return a description, or nothing for a segment with a single batch."""
    spans = [slice(start, start + header.total_bytes) for start, header in iterate_headers(data)]
    if len(spans) < 2:
        return ""
    first, second = sorted(rng.sample(range(len(spans)), 2))
    batches = [bytes(data[span]) for span in spans]
    match rng.choice(("swap", "repeat", "move", "overwrite")):
        case "swap":
            batches[first], batches[second] = batches[second], batches[first]
            done = f"batches {first} and {second} swapped"
        case "repeat":
            batches.insert(second + 1, batches[first])
            done = f"batch {first} repeated after batch {second}"
        case "move":
            batches.insert(second, batches.pop(first))
            done = f"batch {first} moved behind batch {second}"
        case _:
            same = [number for number, each in enumerate(batches) if len(each) == len(batches[first])]
            source = rng.choice([number for number in same if number != first] or [second])
            batches[first] = batches[source]
            done = f"batch {first} overwritten by batch {source}"
    data[:] = b"".join(batches)
    return done


def trial(origin: Origin, folder: Path, rng: random.Random, counts: Counter[str]) -> None:
    """Damage one file of a copy, and judge the records that are served."""
    shutil.copytree(origin.folder, folder)
    name = rng.choice(origin.files)
    done = f"{name} {harm(folder / name, rng)}, {'stopped' if origin.clean else 'killed'}"
    kind = name.suffix or name.name
    counts[f"harmed {kind}"] += 1
    box = LogBox(folder, CONFIG)
    try:
        noticed = judge(origin, box, done)
    except LogError as refused:
        # Only the identity file is required. A start with a damaged identity file is refused, and the message names the
        # file.
        if name.name != "identity" or name.name not in str(refused):
            raise
        noticed = "refused to start"
    finally:
        box.kill()
        shutil.rmtree(folder)
    if noticed is None:
        # A batch that is stored twice hides no record if only its second copy is misplaced.
        if kind == ".log" and " repeated after " not in done:
            message = f"{done}: the damage was not noticed"
            raise Wrong(message)
        noticed = "made again or not needed"
    counts[noticed] += 1


def judge(origin: Origin, box: LogBox, done: str) -> str | None:
    """Open, read and scrub the log; return the first part that noticed the damage."""
    log = box.open()
    if log.end_offset != BATCHES * RECORDS:
        message = f"{done}: the log ends at {log.end_offset}"
        raise Wrong(message)
    by_start = "found at the start" if log.damaged or box.opened.corrupt else None
    served, by_read = read_carefully(origin, log, done)
    if not origin.clean:
        # A log that was stopped cleanly is not read here: a read may report the damage, and the scrub must also find
        # the damage without a read.
        read_everywhere(log, done)
    before = log.damaged
    for segment in log.segments:
        scrub = SegmentScrub(log, segment)
        while scrub.step():
            pass
        scrub.finish()
    missing = set(origin.records) - served
    told = {offset for each in log.damaged for offset in range(each.first_offset, each.next_good_offset)}
    if missing != told:
        message = f"{done}: {sorted(missing ^ told)} are not served or not told; damaged {log.damaged}, first {before}"
        raise Wrong(message)
    if not missing:
        check_times(origin, log, done)
        if log.leader_epochs != origin.epochs:
            message = f"{done}: leader epochs {log.leader_epochs}"
            raise Wrong(message)
    return by_start or by_read


def read_carefully(origin: Origin, log: PartitionLog, done: str) -> tuple[set[int], str | None]:
    """Read all readable records batch by batch; return the served offsets and the part that noticed damage."""
    served, noticed, at = set(), None, log.log_start_offset
    while at < log.end_offset:
        try:
            read = log.read(at, 1, log.end_offset)
        except LogDamaged as damaged:
            if not damaged.first_offset <= at < damaged.next_good_offset:
                message = f"{done}: a read at {at} tells of {damaged}"
                raise Wrong(message) from damaged
            noticed, at = noticed or "found by a read", damaged.next_good_offset
            continue
        try:
            records = decode_records(read.data)
        except ProblemError:
            noticed, at = noticed or "refused by the reader", Offset(at - at % RECORDS + RECORDS)
            continue
        for record in records:
            if record != origin.records.get(record.offset):
                message = f"{done}: offset {record.offset} is {record}"
                raise Wrong(message)
        served |= {record.offset for record in records}
        if read.next_offset <= at:
            message = f"{done}: a read at {at} made no progress"
            raise Wrong(message)
        at = read.next_offset
    return served, noticed


def read_everywhere(log: PartitionLog, done: str) -> None:
    """Read at every offset: each read returns its batch, valid or not, or reports damage, and skips no batch."""
    for at in range(log.log_start_offset, log.end_offset):
        try:
            read = log.read(Offset(at), 1, log.end_offset)
        except LogDamaged:
            continue
        base_offset = batch_span(read.data)[0]
        if base_offset > at and is_whole(read.data):
            message = f"{done}: a read at {at} passes over it, to {base_offset}"
            raise Wrong(message)


def is_whole(batch: memoryview) -> bool:
    """Return whether a reader accepts the batch."""
    try:
        decode_records(batch)
    except ProblemError:
        return False
    return True


def check_times(origin: Origin, log: PartitionLog, done: str) -> None:
    """Look up every batch by its timestamp."""
    for number in range(BATCHES):
        time_us = FIRST_TIME_US + number * 1000
        found = log.offset_for_time(TimestampUs(time_us - 1))
        if found != (number * RECORDS, time_us):
            message = f"{done}: time {time_us} is found at {found}"
            raise Wrong(message)


def run(trials: int, seed: int, *, progress: bool = False) -> dict[str, object]:
    """Damage `trials` copies; report how often each part noticed the damage, and the first unnoticed damage."""
    rng, counts, wrong = random.Random(seed), Counter[str](), None
    with tempfile.TemporaryDirectory(prefix="fairlead-flips-") as name:
        folder = Path(name)
        origins = [Origin(folder / "stopped", clean=True), Origin(folder / "killed", clean=False)]
        for number in range(trials):
            try:
                trial(rng.choice(origins), folder / "trial", rng, counts)
            except Exception as error:  # noqa: BLE001 - every error raised here is a finding
                where = "".join(traceback.format_exception(error)[-4:])
                wrong = f"trial {number}: {type(error).__name__}: {error}\n{where}"
                break
            counts["trials"] += 1
            if progress and number % 20 == 0:
                sys.stderr.write(f"\r{number} of {trials} trials")
    return {"seed": seed, **dict(sorted(counts.items())), "wrong": wrong}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    report = run(arguments.trials, arguments.seed, progress=sys.stderr.isatty())
    sys.stdout.write(json.dumps(report, indent=1).replace("\\n", "\n") + "\n")
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
