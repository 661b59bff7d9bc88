"""Rounds over losses that were accepted: the range is cleaned around them, and readers see the same records."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleaning_kit import (
    KeyedBatches,
    clean_beside,
    clean_log,
    committed,
    newest,
    order_for,
    random_history,
    roll,
)
from fairlead_api.batch.batches import Record
from fairlead_api.batch.header import iterate_headers
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import LogDamaged, PartitionLog, StorageFailed
from fairlead_broker.log.cleaning.rounds import CleaningFailed
from fairlead_broker.log.cleaning_plan import plan_round
from fairlead_broker.log.segments.damage import DamagedRange
from log_kit import FIRST_TIME_US, LogBox, begin

LATER_US = FIRST_TIME_US + 10**12
CONFIG = TopicConfig(cleanup_policy="compact", segment_bytes=1 << 20)
DAMAGED_BY = ("body", "header", "end")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[LogBox]:
    """A data directory with a compacted partition."""
    box = LogBox(tmp_path / "data", config=CONFIG)
    yield box
    box.kill()


def damage(log: PartitionLog, number: int, batch: int, kind: str = "body") -> None:
    """Damage a batch of a segment. `kind`: a bit of the body, the header, or all bytes from the batch to the end."""
    path = log.segments[number].path
    data = bytearray(path.read_bytes())
    places = [(at, at + header.total_bytes) for at, header in iterate_headers(memoryview(bytes(data)))]
    start, stop = places[batch]
    if kind == "body":
        data[stop - 20] ^= 1
    else:
        data[start : stop if kind == "header" else len(data)] = bytes(
            (stop if kind == "header" else len(data)) - start
        )
    path.write_bytes(data)


def accept(log: PartitionLog) -> list[DamagedRange]:
    """Find all damage of a log, and accept the loss."""
    for segment in log.segments:
        found = segment.first_damage(segment.base_offset)
        if found is not None:
            log.note_damage([found])
    for each in log.damaged:
        assert log.accept_damage(each.first_offset, each.next_good_offset)
    return list(log.damaged)


def seen_from_every_offset(log: PartitionLog) -> list[list[Record]]:
    """Return what a reader from each offset gets."""
    return [committed(log, offset) for offset in range(log.end_offset)]


def closed_segments(box: LogBox, count: int = 3, batches: int = 5) -> PartitionLog:
    """Return a log with closed segments whose batches all have the same keys."""
    log = box.open()
    begin(log)
    writer = KeyedBatches(log)
    for segment in range(count):
        for number in range(batches):
            writer.append([(b"same", b"%d" % number), (b"k%d" % number, b"%d" % segment)])
        roll(log)
    return log


@pytest.mark.parametrize("kind", DAMAGED_BY)
def test_a_partition_is_cleaned_above_an_accepted_loss(box: LogBox, kind: str) -> None:
    """After the loss of damaged batches was accepted, a round cleans the whole log, and readers skip only the loss."""
    log = closed_segments(box)
    damage(log, 1, 2, kind)
    with pytest.raises(CleaningFailed) as failed:
        clean_log(log, FIRST_TIME_US)
    log.look_for_damage(failed.value.first_offset)
    before = plan_round(log, log.end_offset, FIRST_TIME_US).range.until
    [refused] = log.damaged
    assert log.accept_damage(refused.first_offset, refused.next_good_offset)
    [lost] = log.damaged
    full = committed(log)
    done = clean_log(log, FIRST_TIME_US)
    kept = committed(log)
    seen = seen_from_every_offset(log)
    box.stop()
    log = box.open()

    assert before == 10
    assert done.until == log.cleaning.cleaned == log.end_offset == 30
    assert newest(kept) == newest(full)
    assert len(kept) == len(newest(full))
    assert log.damaged == (lost,)
    assert seen == [[each for each in kept if each.offset >= offset] for offset in range(30)]
    assert seen_from_every_offset(log) == seen


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.scenario) for seed in range(3, 40))]
)
def test_losses_anywhere_leave_the_newest_of_the_other_records(box: LogBox, seed: int) -> None:
    """Rounds over random histories with random losses keep the newest of the readable records, even after a restart."""
    rng = random.Random(seed)
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    for part in range(3):
        random_history(batches, rng, 40, keys=8)
        roll(log)
        if not log.damaged:
            box.stop()
            log = batches.log = box.open()
            number = rng.randrange(len(log.segments) - 1)
            count = len(list(iterate_headers(memoryview(log.segments[number].path.read_bytes()))))
            damage(log, number, rng.randrange(count), rng.choice(DAMAGED_BY))
            accept(log)
        losses = list(log.damaged)
        full = committed(log)
        clean_log(log, FIRST_TIME_US + part)
        kept = committed(log)
        box.stop()
        log = batches.log = box.open()

        assert newest(kept) == newest(full)
        assert set(map(repr, kept)) <= set(map(repr, full))
        assert committed(log) == kept
        assert list(log.damaged) == losses
    clean_log(log, LATER_US, removal_limit=log.end_offset)
    done = clean_log(log, LATER_US, removal_limit=log.end_offset)

    assert newest(committed(log)) == newest(full)
    assert len(committed(log)) == len(newest(full))
    assert done.until == log.end_offset


def test_no_group_spans_skipped_offsets(box: LogBox) -> None:
    """A gap that a follower has skipped stays a gap between two segments, and lost whole segments stay as they are."""
    log = closed_segments(box, 2)
    log.skip_to(Offset(25), ())
    writer = KeyedBatches(log)
    for number in range(3):
        writer.append([(b"same", b"%d" % number)])
    roll(log)
    damage(log, 1, 0, "end")
    losses = accept(log)
    full = committed(log)
    order, _ = order_for(log, FIRST_TIME_US)
    done = clean_log(log, FIRST_TIME_US)
    bases = [segment.base_offset for segment in log.segments]
    kept = committed(log)
    box.stop()
    log = box.open()

    assert [(each.first_offset, each.next_good_offset) for each in losses] == [(10, 20), (20, 25)]
    assert [each.base_offset for each in order.segments if each.is_lost] == [10, 20]
    assert done.until == 28
    assert bases == [0, 10, 20, 25, 28]
    assert newest(kept) == newest(full)
    assert committed(log) == kept


@pytest.mark.parametrize("step", ["begin_swap", "finish_swap"])
@pytest.mark.parametrize("kind", DAMAGED_BY)
def test_a_swap_that_is_interrupted_keeps_the_loss(
    box: LogBox, monkeypatch: pytest.MonkeyPatch, step: str, kind: str
) -> None:
    """A start after an interrupted swap of segments with a loss finds the same records, and can clean the log."""
    log = closed_segments(box)
    damage(log, 1, 3, kind)
    losses = accept(log)
    full = committed(log)

    def fail(*_arguments: object) -> None:
        """Fail like a disk."""
        raise OSError(5, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(f"fairlead_broker.log.partition_log.{step}", fail)
        with pytest.raises(StorageFailed):
            clean_log(log, FIRST_TIME_US)
    box.kill()
    log = box.open()
    found = newest(committed(log))
    clean_log(log, FIRST_TIME_US)

    assert found == newest(committed(log)) == newest(full)
    assert list(log.damaged) == losses
    assert len(committed(log)) == len(newest(full))


def test_a_loss_that_is_accepted_during_a_round_refuses_the_swap(box: LogBox) -> None:
    """A round that has read bytes whose loss is accepted before the swap replaces no segment."""
    log = closed_segments(box)

    def lose() -> None:
        """Accept the loss of the first batch."""
        log.note_damage([DamagedRange(Offset(0), Offset(2))])
        assert log.accept_damage(Offset(0), Offset(2))

    assert clean_beside(log, FIRST_TIME_US, lose) is None
    assert log.cleaning.cleaned == 0
    assert clean_log(log, FIRST_TIME_US).until == 30


def test_a_loss_amid_a_batch_ends_the_round(box: LogBox) -> None:
    """A range whose loss was accepted, but which begins within a batch, is reported instead of being cleaned."""
    log = closed_segments(box)
    log.note_damage([DamagedRange(Offset(1), Offset(4))])
    assert log.accept_damage(Offset(1), Offset(4))

    with pytest.raises(LogDamaged):
        clean_log(log, FIRST_TIME_US)
