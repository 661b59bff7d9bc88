"""The index of aborted transactions of a log, which is built from markers and survives rolls, restarts and kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.batch.control_batches import Marker, MarkerKind, pack_marker
from fairlead_api.batch.header import STAMP_BYTES, iterate_headers, make_stamp, read_header
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.log import PartitionLog, Shortage, StampedBatch
from log_kit import FIRST_TIME_US, FaultyStorage, LogBox, begin

ONE_MARKER_A_SEGMENT = TopicConfig(segment_bytes=1000)


def stamped(data: bytes, base_offset: int) -> StampedBatch:
    """Return a batch as a leader stamps it."""
    header = read_header(data)
    return StampedBatch(
        make_stamp(header, base_offset, 1, FIRST_TIME_US),
        memoryview(data)[STAMP_BYTES:],
        Offset(base_offset),
        Offset(base_offset + header.last_offset_delta),
        header.max_timestamp_us,
        len(data),
    )


def write(log: PartitionLog, producer_id: int, epoch: int = 0, *, transactional: bool = True) -> int:
    """Append a batch of a producer and return its offset."""
    columns = record_batch([b"x" * 100], timestamps_us=[FIRST_TIME_US], default_timestamp_us=0)
    stamp = ProducerStamp(producer_id, epoch, 0, transactional)
    at = log.end_offset
    log.append([stamped(encode(columns, producer=stamp).to_bytes(), at)])
    return at


def end(
    log: PartitionLog, producer_id: int, first: int | None, epoch: int = 0, *, commits: bool = False
) -> None:
    """Append a marker."""
    marker = Marker(
        ProducerId(producer_id),
        ProducerEpoch(epoch),
        MarkerKind.COMMIT if commits else MarkerKind.ABORT,
        None if first is None else Offset(first),
        TimestampUs(FIRST_TIME_US),
    )
    log.append([stamped(pack_marker(marker), log.end_offset)])


def abort(log: PartitionLog, producer_id: int, epoch: int = 0) -> int:
    """Append a batch and the marker that aborts the batch, and return the offset of the batch."""
    first = write(log, producer_id, epoch)
    end(log, producer_id, first, epoch)
    return first


def committed(log: PartitionLog) -> list[int]:
    """Return the base offsets that a reader of committed records gets from the start of the log, without markers."""
    log.load_aborted()
    at, found = log.log_start_offset, []
    while at < log.end_offset:
        read = log.read(at, 1, log.end_offset)
        parts = log.without_aborted(read)
        assert parts is not None, "the index is loaded"
        for part in parts:
            found += [header.base_offset for _, header in iterate_headers(part) if not header.is_control]
        at = read.next_offset
    return found


@pytest.fixture
def box(tmp_path: Path) -> LogBox:
    """Return a directory with a topic whose segments have about one transaction each."""
    return LogBox(tmp_path, ONE_MARKER_A_SEGMENT)


def fill(log: PartitionLog) -> list[int]:
    """Append committed, plain and aborted batches over several segments, and return the offsets that readers get."""
    begin(log)
    kept = []
    for epoch in range(6):
        kept.append(write(log, 1, epoch))
        end(log, 1, kept[-1], epoch, commits=True)
        abort(log, 2, epoch)
        kept.append(write(log, 3, transactional=False))
    assert log.segment_count > 3
    return kept


def test_readers_of_committed_records_skip_aborted_batches(box: LogBox) -> None:
    """Committed readers skip exactly the batches between the first offset and the marker of an aborted transaction."""
    log = box.open()
    begin(log)
    before = write(log, 2, 0)
    end(log, 2, before, 0, commits=True)
    first = write(log, 2, 1)
    other = write(log, 7)
    write(log, 2, 1)
    end(log, 2, first, 1)
    after = write(log, 2, 2)
    end(log, 2, after, 2, commits=True)
    end(log, 9, None)

    assert committed(log) == [before, other, after]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_start_knows_the_aborted_transactions(box: LogBox, how: str) -> None:
    """After a stop or a kill, readers skip the same aborted batches, including batches in closed segments."""
    log = box.open()
    kept = fill(log)
    log.sync()
    before = committed(log)
    getattr(box, how)()
    again = box.open()

    assert before == committed(again) == kept


def test_a_snapshot_inside_a_segment_has_its_aborted_transactions(tmp_path: Path) -> None:
    """After a start from a producer snapshot in the last segment, readers skip transactions aborted before it."""
    box = LogBox(tmp_path)
    log = box.open()
    begin(log)
    abort(log, 2)
    log.producers.save(log.segments[-1], log.end_offset)
    kept = write(log, 3, transactional=False)
    box.kill()

    assert committed(box.open()) == [kept]


def test_a_damaged_file_is_made_again_from_the_markers(box: LogBox) -> None:
    """An index file with a damaged entry is ignored, and rebuilt from the markers of its segment."""
    log = box.open()
    kept = fill(log)
    box.stop()
    files = sorted(box.folder.glob("*.aborted"))
    for path in files:
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)

    assert files
    assert committed(box.open()) == kept


def test_a_segment_closed_by_recovery_gets_its_file(box: LogBox) -> None:
    """A segment whose index file was lost before its sync gets the file again when recovery reads the segment."""
    log = box.open()
    kept = fill(log)
    box.kill()
    for path in box.folder.glob("*.aborted"):
        path.unlink()

    assert committed(box.open()) == kept


def test_truncation_forgets_later_transactions(box: LogBox) -> None:
    """After a truncation before its marker, a transaction is open again and may end differently."""
    log = box.open()
    fill(log)
    first = write(log, 2, 9)
    marker = log.end_offset
    end(log, 2, first, 9)
    log.truncate_to(marker)
    opened = dict(log.producers.state.transactions.first_offsets)
    end(log, 2, first, 9, commits=True)

    assert opened == {2: first}
    assert committed(log)[-1] == first


def test_a_full_disk_refuses_the_roll(tmp_path: Path) -> None:
    """An append is refused while a full disk has no space for the index of the closing segment, and succeeds later."""
    storage = FaultyStorage()
    storage.full_suffixes = {".aborted"}
    log = LogBox(tmp_path, ONE_MARKER_A_SEGMENT, storage).open()
    begin(log)
    abort(log, 2)
    storage.room_bytes = 0
    with pytest.raises(Shortage):
        write(log, 3, 0, transactional=False)
    storage.room_bytes = None
    kept = write(log, 3, transactional=False)

    assert log.segment_count == 2
    assert committed(log) == [kept]


def test_ended_transactions_are_forgotten_once_committed(box: LogBox) -> None:
    """The state of the log keeps ended transactions only until the high watermark has passed their markers."""
    log = box.open()
    begin(log)
    for epoch in range(5):
        abort(log, 2, epoch)
        log.checkpoint_high_watermark = log.end_offset
    held = log.producers.state.copy().transactions._ending

    assert [marker for marker, _ in held] == [9]
