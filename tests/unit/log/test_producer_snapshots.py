"""Producer state of a log after appends, kills, truncations and damage."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.batch.extension import idempotency_extension
from fairlead_api.batch.header import STAMP_BYTES, make_stamp, read_header
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.log import DiskFull, PartitionLog, StampedBatch, StorageFailed, producer_snapshots
from fairlead_broker.log.segments.storage import Buffer, PosixFile, PosixStorage
from fairlead_broker.producers import ProducerState, Snapshot, decode_snapshot, encode_snapshot
from log_kit import FIRST_TIME_US, FaultyStorage, LogBox, begin, read_all
from refusals import raises

SMALL_SEGMENTS = TopicConfig(segment_bytes=4096)
KEY_EVERY = 7


def batch(
    offset: int,
    sequence: int = -1,
    *,
    producer_id: int = 7,
    count: int = 1,
    key: bytes | None = None,
    padding: int = 10,
    time_us: int | None = None,
) -> StampedBatch:
    """Return a leader-stamped batch of a producer, of a keyed request, or of neither."""
    columns = record_batch([b"x"] * count, default_timestamp_us=FIRST_TIME_US)
    producer = None if sequence < 0 else ProducerStamp(producer_id, 0, sequence)
    extension = () if key is None else idempotency_extension(key, key.ljust(16, b"\0"))
    data = encode(columns, producer=producer, extension=extension).to_bytes()
    header = read_header(data)
    append_time_us = FIRST_TIME_US + offset if time_us is None else time_us
    return StampedBatch(
        make_stamp(header, offset, 1, append_time_us),
        memoryview(data)[STAMP_BYTES:],
        Offset(offset),
        Offset(offset + count - 1),
        header.max_timestamp_us,
        len(data),
    )


def fill(log: PartitionLog, count: int, *, group: int = 1) -> None:
    """Append batches of three producers in turn, with keyed batches and batches without a producer in between."""
    at = log.end_offset
    made = []
    for offset in range(at, at + count):
        if offset % KEY_EVERY == 3:
            made.append(batch(offset, key=b"key-%d" % offset))
        elif offset % KEY_EVERY == 5:
            made.append(batch(offset))
        else:
            made.append(batch(offset, offset, producer_id=offset % 3))
    for start in range(0, count, group):
        log.append(made[start : start + group])


def said(log: PartitionLog) -> bytes:
    """Return the encoded producer state of a log, for comparison."""
    return encode_snapshot(Snapshot(log.end_offset, log.producers.state))


def snapshots(box: LogBox) -> list[Path]:
    """Return the snapshot files, oldest first."""
    return sorted(box.folder.glob("*.producers"))


@pytest.fixture
def log(box: LogBox) -> PartitionLog:
    """Return an open log with small segments in its first leader epoch."""
    opened = box.open(SMALL_SEGMENTS)
    begin(opened)
    return opened


def again(box: LogBox) -> PartitionLog:
    """Kill the log and return it after the next start."""
    box.kill()
    return box.open()


def test_each_roll_leaves_the_state_at_its_offset(box: LogBox, log: PartitionLog) -> None:
    """Each roll saves a snapshot of the producer state at the new segment's base offset, even within one append."""
    fill(log, 60, group=20)
    found = {int(path.stem): decode_snapshot(path.read_bytes()) for path in snapshots(box)}
    bases = [int(path.stem) for path in box.log_files()]

    assert list(found) == bases[1:]
    for base, snapshot in found.items():
        assert snapshot is not None
        assert snapshot.offset == base
        assert snapshot.state.last_append_time_us == FIRST_TIME_US + base - 1
        for entry in snapshot.state.producers.values():
            assert entry.batches[-1].last_offset < base


def test_every_replica_counts_the_same_ages(tmp_path: Path) -> None:
    """A leader whose clock jumps, its follower, and a restart from a snapshot or all headers have the same state."""
    box, other = LogBox(tmp_path / "leader"), LogBox(tmp_path / "follower")
    log, copy = box.open(SMALL_SEGMENTS), other.open()
    begin(log)
    hour_us = 3600 * 1_000_000
    for offset in range(60):
        time_us = FIRST_TIME_US + offset * hour_us // 4 + (offset * 7 % 5 - 2) * 30 * hour_us
        key = b"key-%d" % offset if offset % KEY_EVERY == 3 else None
        sequence = -1 if key else offset
        log.append([batch(offset, sequence, producer_id=offset % 3, key=key, time_us=time_us)])
    copy.append_copies(memoryview(read_all(log)))
    before = said(log)
    started = [said(again(box))]
    for path in snapshots(box):
        path.unlink()
    started.append(said(again(box)))

    assert [said(copy), *started] == [before] * 3


def test_a_start_finds_what_was_known(box: LogBox, log: PartitionLog) -> None:
    """A log restores its producers from snapshot and headers after a kill, and from a snapshot alone after a stop."""
    fill(log, 50)
    before = said(log)
    killed = again(box)
    after_kill = said(killed)
    box.stop()
    snapshot = decode_snapshot(snapshots(box)[-1].read_bytes())
    stopped = box.open()

    assert before == after_kill == said(stopped)
    assert snapshot is not None
    assert snapshot.offset == 50


def test_a_start_walks_only_behind_the_newest_snapshot(
    box: LogBox, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start reads only the batch headers after the newest snapshot, even in a large last segment."""
    fill(log, 30)
    log.update_config(TopicConfig())
    fill(log, 400)
    log.save_producers_if_due()
    fill(log, 10)
    before, walked = said(log), []
    replay = producer_snapshots.LoggedProducers._replay_walked
    monkeypatch.setattr(
        producer_snapshots.LoggedProducers,
        "_replay_walked",
        lambda self, file, found: (walked.append(found), replay(self, file, found)),
    )

    assert said(again(box)) == before
    assert len(walked) == 10


def test_a_snapshot_is_worth_some_batches(box: LogBox, log: PartitionLog) -> None:
    """A snapshot of the producers is saved only after many appends, and never by a closed log."""
    fill(log, 5)
    log.save_producers_if_due()
    few = snapshots(box)
    log.update_config(TopicConfig())
    fill(log, 100)
    log.save_producers_if_due()
    many = [path.stat().st_mtime_ns for path in snapshots(box)]
    log.save_producers_if_due()

    assert few == []
    assert len(many) == 1
    assert [path.stat().st_mtime_ns for path in snapshots(box)] == many
    box.stop()
    log.save_producers_if_due()


@pytest.mark.parametrize("offset", [0, 1, 17, 30, 59])
def test_truncation_forgets_what_was_later(box: LogBox, log: PartitionLog, offset: int) -> None:
    """A truncated log has the producer state of a log that never extended beyond the cut, even after a kill."""
    fill(log, 60, group=7)
    log.truncate_to(Offset(offset))
    now = said(log)
    after = said(again(box))
    other = LogBox(box.path.with_name("other"), SMALL_SEGMENTS)
    reference = other.open()
    begin(reference)
    if offset:
        fill(reference, offset)

    assert now == after == said(reference)
    other.stop()


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_truncation_remembers_what_was_deleted(
    box: LogBox, log: PartitionLog, stopped: bool, killed: bool
) -> None:
    """A log that is truncated to its log start keeps the producers of its deleted segments."""
    # Producers and keys expire after a day, even if retention deletes the segments of the topic earlier. Later
    # snapshots of the only remaining segment reach beyond the cut; the snapshot at its base offset covers the deleted
    # segments.
    fill(log, 60, group=7)
    base = log.segments[-1].base_offset
    log.truncate_to(base)
    expected = said(log)
    log.update_config(TopicConfig())
    fill(log, 300)
    log.save_producers_if_due()
    fill(log, 100)
    log.save_producers_if_due()
    if stopped:
        box.stop()
        log = box.open()
    log.checkpoint_high_watermark = log.end_offset
    log.advance_log_start(base, remove_us=TimestampUs(0))
    log.truncate_to(base)
    now = said(again(box) if killed else log)

    assert (log.segment_count, now) == (1, expected)


def test_a_segment_without_a_snapshot_of_its_begin_has_later_ones(box: LogBox, faults: FaultyStorage) -> None:
    """A segment whose roll found no space for a snapshot gets a snapshot once there is space."""
    log = box.open(SMALL_SEGMENTS)
    begin(log)
    fill(log, 20, group=7)
    faults.room_bytes, faults.full_suffixes = 0, {".tmp"}
    while log.segment_count < 4:
        fill(log, 1)
    faults.room_bytes = None
    log.update_config(TopicConfig())
    fill(log, 200)
    log.save_producers_if_due()
    before = said(log)

    assert int(snapshots(box)[-1].stem) == log.segments[-1].base_offset
    assert said(again(box)) == before


@pytest.mark.parametrize("damage", [b"", b"FLPR", None])
def test_without_a_good_snapshot_older_ones_and_headers_do(
    box: LogBox, log: PartitionLog, damage: bytes | None
) -> None:
    """A log whose snapshots are damaged or missing restores its producers from older snapshots and batch headers."""
    fill(log, 60)
    before = said(log)
    for paths in (snapshots(box)[-2:], snapshots(box)):
        box.kill()
        for path in paths:
            path.unlink(missing_ok=True) if damage is None else path.write_bytes(damage)

        assert said(box.open()) == before


def test_a_snapshot_beyond_the_end_is_removed(box: LogBox, log: PartitionLog) -> None:
    """A snapshot beyond the log end is removed, because it would be wrong once the log has grown again."""
    fill(log, 5)
    box.stop()
    later = ProducerState()
    path = box.folder / f"{0:020d}.producers"
    path.write_bytes(encode_snapshot(Snapshot(Offset(6), later)))
    log = box.open()

    assert not path.exists()
    assert log.producers.state.producer(0) is not None


def test_a_full_disk_takes_no_part_of_a_group(box: LogBox, faults: FaultyStorage) -> None:
    """A group of batches that a full disk refuses changes no producer state and leaves no snapshot."""
    log = box.open(SMALL_SEGMENTS)
    begin(log)
    fill(log, 3)
    before, files = said(log), snapshots(box)
    faults.room_bytes = 6000
    with pytest.raises(DiskFull):
        fill(log, 30, group=30)
    faults.room_bytes = None

    assert said(log) == before
    assert snapshots(box) == files
    assert said(again(box)) == before


class NoSnapshots(PosixStorage):
    """A disk that fails to write snapshots."""

    number = errno.ENOSPC

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file; a snapshot file fails at every write."""
        file = super().open(path, write=write, create=create)
        return _Unwritable(file, self) if create and ".producers" in path.name else file


class _Unwritable(PosixFile):
    def __init__(self, file: PosixFile, storage: NoSnapshots) -> None:
        super().__init__(storage, file._path, file._use(), write=True)
        self._number = storage.number

    def write(self, buffers: list[Buffer], position: int) -> None:  # type: ignore[override]
        raise OSError(self._number, os.strerror(self._number))


def test_no_room_for_a_snapshot_stops_no_append(tmp_path: Path) -> None:
    """A log without space for snapshots keeps appending, and the next start removes unfinished snapshot files."""
    box = LogBox(tmp_path / "data", SMALL_SEGMENTS, NoSnapshots())
    log = box.open()
    begin(log)
    fill(log, 30)
    before = said(log)
    box.storage = None
    leftovers = list(box.folder.glob("*.tmp"))

    assert leftovers
    assert snapshots(box) == []
    assert said(again(box)) == before
    assert list(box.folder.glob("*.tmp")) == []
    box.stop()


def test_a_disk_that_fails_ends_the_directory(tmp_path: Path) -> None:
    """A log refuses every append after a failed write of a snapshot, as after any failed write."""
    storage = NoSnapshots()
    storage.number = errno.EIO
    box = LogBox(tmp_path / "data", SMALL_SEGMENTS, storage)
    log = box.open()
    begin(log)

    with raises(StorageFailed, "producers"):
        fill(log, 30)
    with pytest.raises(StorageFailed):
        fill(log, 1)
    box.kill()


def test_damage_hides_only_what_is_in_it(box: LogBox) -> None:
    """A damaged batch hides only its own producer or key, and the walk over headers continues at the next batch."""
    log = box.open()
    begin(log)
    log.append([batch(0, 0, producer_id=1)])
    position = log.size_bytes
    log.append([batch(1, 0, producer_id=2), batch(2, 0, producer_id=3)])
    keyed = log.size_bytes
    log.append([batch(3, key=b"key-3"), batch(4, 1, producer_id=1)])
    log.sync()
    box.opened.write_checkpoint()
    box.kill()
    path = box.log_files()[0]
    data = bytearray(path.read_bytes())
    data[position + 2] ^= 0xFF
    data[keyed + 90 : keyed + 92] = b"\xff\xff"
    path.write_bytes(data)
    state = box.open().producers.state

    assert [state.producer(number) is not None for number in (1, 2, 3)] == [True, False, True]
    assert state.key(b"key-3") is None
    entry = state.producer(1)
    assert entry is not None
    assert entry.next_sequence == 2


def test_damage_to_the_end_ends_the_walk(box: LogBox) -> None:
    """A walk over batch headers stops at damage that extends to the segment's end, and keeps the earlier producers."""
    log = box.open()
    begin(log)
    log.append([batch(0, 0, producer_id=1), batch(1, 0, producer_id=2)])
    log.sync()
    box.opened.write_checkpoint()
    box.kill()
    path = box.log_files()[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)
    state = box.open().producers.state

    assert [state.producer(number) is not None for number in (1, 2)] == [True, False]


@pytest.mark.slow
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 20), st.integers(1, 5)),
            st.tuples(st.just("kill"), st.just(0), st.just(0)),
            st.tuples(st.just("stop"), st.just(0), st.just(0)),
            st.tuples(st.just("truncate"), st.integers(0, 100), st.just(0)),
            st.tuples(st.just("save"), st.just(0), st.just(0)),
        ),
        max_size=12,
    )
)
def test_the_state_is_a_function_of_the_log(memory: Callable[[], Path], steps: list) -> None:
    """A log's producer state depends only on its batch headers, not on operations and snapshots."""
    box = LogBox(memory() / "data", SMALL_SEGMENTS)
    log = box.open()
    begin(log)
    for what, number, group in steps:
        match what:
            case "append":
                fill(log, number, group=group)
            case "kill":
                log = again(box)
            case "stop":
                box.stop()
                log = box.open()
            case "truncate":
                log.truncate_to(Offset(log.end_offset * number // 100))
            case "save":
                log.save_producers_if_due()
    before = said(log)
    box.kill()
    for path in snapshots(box):
        path.unlink()

    assert said(box.open()) == before
    box.stop()


STEPS = st.tuples(
    st.sampled_from(["append", "append", "kill", "stop", "truncate", "delete"]),
    st.integers(1, 100),
)


@pytest.mark.slow
@settings(max_examples=40)
@given(steps=st.lists(STEPS, max_size=10))
def test_the_state_is_that_of_a_log_which_deleted_nothing(
    memory: Callable[[], Path], steps: list[tuple[str, int]]
) -> None:
    """A log's producer state equals that of a log with the same appends and truncations and without deletions."""
    path = memory()
    box, whole = LogBox(path / "data", SMALL_SEGMENTS), LogBox(path / "whole", SMALL_SEGMENTS)
    log, reference = box.open(), whole.open()
    begin(log), begin(reference)
    for what, number in steps:
        match what:
            case "append":
                fill(log, number // 3, group=7)
                fill(reference, number // 3, group=7)
            case "kill":
                log = again(box)
            case "stop":
                box.stop()
                log = box.open()
            case "truncate":
                start = log.log_start_offset
                end = Offset(start + (log.end_offset - start) * number // 100)
                log.truncate_to(end), reference.truncate_to(end)
            case _:
                log.checkpoint_high_watermark = log.end_offset
                log.advance_log_start(log.segments[-1].base_offset, remove_us=TimestampUs(0))
    before = said(log)
    whole.kill()
    for snapshot in snapshots(whole):
        snapshot.unlink()

    assert before == said(whole.open()) == said(again(box))
    box.stop(), whole.stop()
