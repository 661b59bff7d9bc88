"""Rounds of cleaning on real logs: readers see the same records, except for records that a newer one replaces."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from cleaning_kit import (
    KeyedBatches,
    check_covered,
    clean_log,
    committed,
    make_hostile,
    newest,
    order_for,
    random_history,
    roll,
)
from fairlead_api.batch.batches import Record
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, ProducerId, TimestampUs
from fairlead_broker.compaction import windows
from fairlead_broker.compaction.cleanable import NEVER_CLEANED
from fairlead_broker.compaction.key_map import BUFFER_BYTES_MIN, SLOT_BYTES
from fairlead_broker.log import PartitionLog
from fairlead_broker.log.cleaning.rounds import CleaningFailed, Event, GroupCleaned, RoundDone, clean
from fairlead_broker.log.errors import DiskFull, SegmentReplaced
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.producers.entries import KeyEntry, ProducerEntry
from log_kit import FIRST_TIME_US, LogBox, begin

DAY_US = 24 * 3600 * 1_000_000
CONFIG = TopicConfig(cleanup_policy="compact", segment_bytes=1 << 20)
WINDOW_ROWS = (1, 7, windows.ROWS_MAX)
BUFFER_BYTES = (16 * SLOT_BYTES, 64 * SLOT_BYTES, BUFFER_BYTES_MIN)
SEGMENT_BYTES = (4000, 16_000, 1 << 20)


@pytest.fixture
def box(tmp_path: Path) -> LogBox:
    """A data directory with a compacted partition."""
    return LogBox(tmp_path / "data", config=CONFIG)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.scenario) for seed in range(2, 40))]
)
def test_the_newest_record_of_each_key_stays_with_its_offset_and_time(
    box: LogBox, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After rounds over any history, the map of the log equals that of the full log, even after a restart.

    Three consecutive seeds have every size of windows, of the map of keys and of segments, and nine have every pair of
    sizes. A restart without the snapshots of producers replays what the rounds have left of the log.
    """
    rng = random.Random(seed)
    turn = seed // 3
    monkeypatch.setattr(windows, "ROWS_MAX", WINDOW_ROWS[seed % 3])
    buffer_bytes = BUFFER_BYTES[(seed + turn) % 3]
    config = replace(CONFIG, segment_bytes=SEGMENT_BYTES[(seed + 2 * turn) % 3])
    log = box.open(config)
    begin(log)
    batches = KeyedBatches(log)
    for part in range(3):
        random_history(batches, rng, 60, keys=rng.choice((3, 20, 200)))
        roll(log)
        full = committed(log)
        before = producers_of(log)
        while clean_log(log, FIRST_TIME_US + part, buffer_bytes=buffer_bytes).until < log.end_offset:
            pass
        kept = committed(log)

        check_covered(log)
        assert newest(kept) == newest(full)
        assert set(map(repr, kept)) <= set(map(repr, full))
        # A tombstone within its horizon stays, so a reader from the start sees every delete.
        deleted = {record.key for record in full} - newest(full).keys() - {None}
        assert deleted <= {record.key for record in kept}
        check_times(log, kept)
        box.opened.write_checkpoint()
        box.stop()
        if part == 1:
            for snapshot in box.folder.glob("*.producers"):
                snapshot.unlink()
        log = batches.log = box.open()
        assert committed(log) == kept
        assert producers_of(log) == before
        check_times(log, kept)


@pytest.mark.parametrize("seed", range(6))
def test_a_deleted_key_does_not_return_at_a_log_start_inside_a_batch(box: LogBox, seed: int) -> None:
    """Records at or above a log start inside a batch are cleaned like others, even after their tombstones have gone."""
    rng = random.Random(seed)
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    keys = [b"k%d" % number * (1 + number % 7) for number in range(8)]
    random_history(batches, rng, 20, keys=8)
    first = batches.append([(key, b"at the log start") for key in keys])
    random_history(batches, rng, rng.choice((0, 20)), keys=8)
    roll(log)
    if seed % 2:
        # The batch that contains the log start is then a merged batch.
        clean_log(log, FIRST_TIME_US)
    log.advance_log_start(Offset(first + rng.randrange(1, len(keys))))
    deleted = set(rng.sample(keys, 4))
    batches.append([(key, None) for key in deleted])
    roll(log)
    full = committed(log)
    clean_log(log, FIRST_TIME_US)
    removing = [committed(log)]
    for part in range(2):
        clean_log(log, FIRST_TIME_US + (part + 1) * 2 * DAY_US, removal_limit=log.end_offset)
        removing.append(committed(log))

    check_covered(log)
    assert [newest(each) for each in removing] == [newest(full)] * 3
    assert deleted <= {record.key for record in removing[0]}
    assert [deleted & {record.key for record in each} for each in removing[1:]] == [set(), set()]
    # A removed tombstone below the log start causes no further round.
    assert log.cleaning.oldest_horizon_us is None


def producers_of(log: PartitionLog) -> tuple[dict[ProducerId, ProducerEntry], dict[bytes, KeyEntry]]:
    """Return the producers and idempotency keys that a log remembers."""
    state = log.producers.state
    return dict(state.producers), dict(state.keys)


def check_times(log: PartitionLog, kept: list[Record]) -> None:
    """Check that each time finds the first record at or after the time."""
    for time_us in sorted({record.timestamp_us + step for record in kept for step in (-1, 0, 1)}):
        first = next((each for each in kept if each.timestamp_us >= time_us), None)
        expected = None if first is None else (first.offset, first.timestamp_us)
        assert log.offset_for_time(TimestampUs(time_us)) == expected


def test_reads_from_every_offset_and_time_equal_the_filtered_log(box: LogBox) -> None:
    """A read from any offset, kept or removed, and a lookup of any time find the first remaining record."""
    rng = random.Random(7)
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    random_history(batches, rng, 80, keys=10)
    batches.append([(b"k", b"1"), (b"k", b"2"), (b"l", b"3")], append_time=True)
    roll(log)
    clean_log(log, FIRST_TIME_US)
    kept = committed(log)

    for offset in range(log.end_offset):
        assert committed(log, offset) == [record for record in kept if record.offset >= offset]
    check_times(log, kept)


def test_a_small_map_cleans_a_log_in_several_rounds(box: LogBox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds whose map is full end early, and the next round continues at that point until the log is clean."""
    monkeypatch.setattr(windows, "ROWS_MAX", 10)
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    for number in range(60):
        batches.append([(b"k%d" % (number % 40), b"%d" % number), (b"same", b"%d" % number)])
        if number % 20 == 19:
            roll(log)
    full = committed(log)
    rounds = [clean_log(log, FIRST_TIME_US, buffer_bytes=32 * SLOT_BYTES).until for _ in range(8)]

    assert newest(committed(log)) == newest(full)
    assert rounds == sorted(rounds)
    assert rounds[0] < rounds[-1] == log.end_offset
    assert len(committed(log)) == len(newest(full))
    check_covered(log)


@pytest.mark.parametrize("kind", ["flipped", "short", "malformed"])
def test_hostile_bytes_end_the_round_and_change_nothing(box: LogBox, kind: str) -> None:
    """A damaged or malformed batch in a closed segment ends the round with its offset, and the files are unchanged."""
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    batches.append([(b"a", b"1")])
    position = log.segments[0].size
    batches.append([(b"a", b"2" * 50)])
    batches.append([(b"a", b"3")])
    roll(log)
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    if kind == "short":
        del data[-8:]
    else:
        make_hostile(data, position, kind)
    path.write_bytes(data)

    with pytest.raises(CleaningFailed) as failed:
        clean_log(log, FIRST_TIME_US)
    assert failed.value.first_offset == {"flipped": 1, "short": 0, "malformed": 1}[kind]
    assert path.read_bytes() == data
    assert len(log.segments) == 2


def test_a_log_that_was_cut_during_a_round_keeps_its_segments(box: LogBox) -> None:
    """A group of segments is not swapped after a truncation of the log, and its files are removed."""
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    for number in range(4):
        batches.append([(b"a", b"%d" % number)])
    roll(log)
    order, generation = order_for(log, FIRST_TIME_US)
    events = clean(order, PosixStorage())
    group = next(event for event in events if isinstance(event, GroupCleaned))
    log.truncate_to(Offset(2))

    assert not log.swap(group, generation, TimestampUs(0))
    assert [record.offset for record in committed(log)] == [0, 1]
    assert not list(log.folder.glob("*.cleaned"))


def test_a_full_disk_before_a_swap_leaves_the_log_unchanged(box: LogBox) -> None:
    """If the checkpoint before a swap finds no space, the log keeps its segments, and the cleaned files are removed."""
    log = box.open()
    begin(log)
    KeyedBatches(log).append([(b"a", b"1"), (b"a", b"2")])
    roll(log)

    def fill() -> None:
        """Find no space."""
        raise DiskFull("no space")

    log.on_offsets_moved(fill)
    with pytest.raises(DiskFull):
        clean_log(log, FIRST_TIME_US)
    log.on_offsets_moved(box.opened.write_checkpoint)
    left = list(log.folder.glob("*.cleaned"))
    state, unchanged = log.cleaning, committed(log)
    clean_log(log, FIRST_TIME_US)

    assert not left
    assert (state, len(unchanged)) == (NEVER_CLEANED, 2)
    assert [record.offset for record in committed(log)] == [1]


def test_a_swap_is_known_after_a_crash_before_the_end_of_its_round(box: LogBox) -> None:
    """The end of the replaced segments is durable before the swap, and falls with the end of the log."""
    log = box.open()
    begin(log)
    KeyedBatches(log).append([(b"a", b"1"), (b"a", b"2")])
    roll(log)
    KeyedBatches(log).append([(b"a", b"3")])
    order, generation = order_for(log, FIRST_TIME_US)
    group = next(event for event in clean(order, PosixStorage()) if isinstance(event, GroupCleaned))
    log.sync()
    assert log.swap(group, generation, TimestampUs(0))
    box.kill()
    log = box.open()
    state = log.cleaning
    log.truncate_to(Offset(0))

    assert (state.cleaned, state.differs_below) == (0, 2)
    assert log.cleaning.differs_below == 0


def test_a_round_whose_log_was_cut_after_its_last_swap_is_not_recorded(box: LogBox) -> None:
    """Records that follow a cut below the end of a round are not taken for cleaned records."""
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    batches.append([(b"a", b"1")])
    batches.append([(b"a", b"2")])
    roll(log)
    order, generation = order_for(log, FIRST_TIME_US)
    events = list[Event]()
    for event in clean(order, PosixStorage()):
        events.append(event)
        if isinstance(event, GroupCleaned):
            assert log.swap(event, generation, TimestampUs(0))
            log.truncate_to(Offset(0))
            batches.append([(b"b", b"3")])
            batches.append([(b"b", b"4")])
    done = events[-1]

    assert isinstance(done, RoundDone)
    assert not log.note_cleaned(done, generation)
    assert log.cleaning.cleaned == 0


def test_readers_of_replaced_segments_end_undisturbed(box: LogBox) -> None:
    """A segment in use by a reader remains readable after the swap, until the reader releases the segment."""
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    for number in range(4):
        batches.append([(b"a", b"%d" % number)])
    roll(log)
    held = log.segments[0]
    before = held.read(Offset(0), 1 << 20, Offset(4))
    clean_log(log, FIRST_TIME_US)
    after = held.read(Offset(0), 1 << 20, Offset(4))
    log.remove_dropped(TimestampUs(1))

    assert before is not None
    assert after is not None
    assert bytes(after.data) == bytes(before.data)
    assert [record.value for record in committed(log)] == [b"3"]


def test_a_reader_that_opens_a_replaced_segment_reads_the_new_one(box: LogBox) -> None:
    """A segment that was not open before the swap can no longer be opened, and reads use the new segment."""
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    for number in range(4):
        batches.append([(b"a", b"%d" % number)])
    roll(log)
    old = log.segments
    order, generation = order_for(log, FIRST_TIME_US)
    old[0].body = None
    for event in clean(order, PosixStorage()):
        assert not isinstance(event, GroupCleaned) or log.swap(event, generation, TimestampUs(0))

    with pytest.raises(SegmentReplaced):
        old[0].load()
    new, log._segments = log._segments, old

    def swapped() -> None:
        """Finish the swap while a reader is about to open the old segment."""
        log._segments = new

    log._wait_for_swap = swapped  # type: ignore[method-assign]
    assert [record.value for record in committed(log)] == [b"3"]
    log._segments = old
    assert log.offset_for_time(TimestampUs(0)) == (3, FIRST_TIME_US + 4000)
