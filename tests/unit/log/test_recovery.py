"""Recovery of a log at startup: cuts, damage, scans, indexes and epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead_api.batch.header import STAMP_BYTES, checksum
from fairlead_api.configuration import Durability, TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import DamagedRange, LogDamaged, PartitionLog, StampedBatch
from fairlead_broker.log.segments.batch_walk import UnknownFormat
from log_kit import BatchMaker, LogBox, begin, read_all, stored
from refusals import raises

EVERY_DURABILITY = pytest.mark.parametrize("durability", list(Durability))
SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=1000)


def start_again(box: LogBox) -> PartitionLog:
    """Kill the directory and open it again."""
    box.kill()
    return box.open()


@pytest.mark.slow
@pytest.mark.parametrize(
    "durability", [Durability.SYNCED, pytest.param(Durability.REPLICATED, marks=pytest.mark.scenario)]
)
def test_a_torn_tail_is_cut_at_every_byte(box: LogBox, make: BatchMaker, durability: Durability) -> None:
    """A torn last batch of any length is cut off at startup, and the recovery report lists the cut."""
    config = replace(SMALL, durability=durability)
    log = box.open(config)
    batches = make.fill(log, 3)
    box.kill()
    whole = box.log_files()[0].read_bytes()
    start = len(whole) - batches[-1].nbytes
    for nbytes in range(1, batches[-1].nbytes):
        box.log_files()[0].write_bytes(whole[: start + nbytes])
        log = box.open()
        cuts = log.recovery_report.cuts

        assert read_all(log) == stored(*batches[:2])
        assert (log.end_offset, log.synced_offset) == (4, 0)
        assert [(cut.position, cut.nbytes, cut.first_offset) for cut in cuts] == [(start, nbytes, 4)]
        assert box.log_files()[0].read_bytes() == whole[:start]
        box.kill()
    box.log_files()[0].write_bytes(whole)
    assert read_all(box.open()) == whole


@EVERY_DURABILITY
def test_a_tail_of_zeros_or_garbage_is_cut(box: LogBox, make: BatchMaker, durability: Durability) -> None:
    """A tail of zeros or garbage is cut off after the last good batch, where new batches are appended."""
    log = box.open(replace(SMALL, durability=durability))
    batches = make.fill(log, 3)
    for tail in (bytes(7), bytes(5000), b"\x01" * 300, stored(make(9))[:200] + bytes(100)):
        box.kill()
        with box.log_files()[-1].open("ab") as file:
            file.write(tail)
        log = box.open()
        assert log.recovery_report.cuts[0].nbytes == len(tail)
        assert log.recovery_report.damaged == []
        batches += make.fill(log, 1)

        assert read_all(log) == stored(*batches)


def test_a_batch_inside_a_torn_batch_is_not_taken_for_one(box: LogBox, make: BatchMaker) -> None:
    """A batch inside a record of a torn batch is not mistaken for a batch, so the torn tail is cut without damage."""
    log = box.open()
    make.fill(log, 1)
    inner = stored(make(50))
    outer = make(2, 1, 4000)
    content = bytearray(outer.content)
    content[1004 : 1004 + len(inner)] = inner
    box.kill()
    with box.log_files()[0].open("ab") as file:
        file.write((outer.stamp + content)[:3500])
    log = box.open()

    assert (log.end_offset, log.damaged, len(log.recovery_report.cuts)) == (2, (), 1)


def damage_batch(box: LogBox, batches: list[StampedBatch], number: int) -> None:
    """Change one byte in the middle of a stored batch."""
    data = stored(batches[number])
    for path in box.log_files():
        content = bytearray(path.read_bytes())
        at = content.find(data)
        if at >= 0:
            content[at + len(data) // 2] ^= 0xFF
            path.write_bytes(content)
            return
    pytest.fail(f"batch {number} is in no file")


@pytest.mark.parametrize("number", [0, 1, 7, 18])
def test_synced_damage_drops_nothing(box: LogBox, make: BatchMaker, number: int) -> None:
    """With `synced` durability, a bad batch before good batches is reported, and all other batches are served."""
    log = box.open(SMALL)
    batches = make.fill(log, 20)
    box.kill()
    damage_batch(box, batches, number)
    size = sum(path.stat().st_size for path in box.log_files())
    log = box.open()
    for _ in range(2):
        first, following = Offset(2 * number), Offset(2 * number + 2)

        assert log.damaged == (DamagedRange(first, following),)
        assert sum(path.stat().st_size for path in box.log_files()) == size
        assert log.end_offset == 40
        for offset in (first, first + 1):
            with pytest.raises(LogDamaged) as refused:
                log.read(Offset(offset), 1 << 20, log.end_offset)
            assert (refused.value.first_offset, refused.value.next_good_offset) == (first, following)
        if number:
            before = log.read(Offset(first - 1), 1 << 20, log.end_offset)
            assert before.data == stored(batches[number - 1])
            assert before.next_offset == first
        assert read_all(log, offset=following) == stored(*batches[number + 1 :])
        log.sync()
        box.stop()
        log = box.open()
        assert log.recovery_report.scanned_bytes == 0, "the range is remembered, not searched again"


@pytest.mark.parametrize("number", [0, 1, 7, 18])
def test_replicated_damage_past_the_recovery_point_is_cut(box: LogBox, make: BatchMaker, number: int) -> None:
    """A log with `replicated` durability is cut at a bad batch past the recovery point, and the cut is reported."""
    log = box.open(replace(SMALL, durability=Durability.REPLICATED))
    batches = make.fill(log, 20)
    nbytes = len(stored(*batches))
    box.kill()
    damage_batch(box, batches, number)
    log = box.open()

    assert read_all(log) == stored(*batches[:number])
    assert log.damaged == ()
    assert sum(cut.nbytes for cut in log.recovery_report.cuts) == nbytes - len(stored(*batches[:number]))
    assert read_all(start_again(box)) == stored(*batches[:number])


@EVERY_DURABILITY
@pytest.mark.parametrize("harm", ["bad", "short", "gone"])
def test_what_was_synced_is_never_cut(
    box: LogBox, make: BatchMaker, durability: Durability, harm: str
) -> None:
    """Batches that are unreadable below the recovery point are damage, and their offsets are never assigned again."""
    log = box.open(replace(SMALL, durability=durability))
    batches = make.fill(log, 20)
    log.sync()
    box.opened.write_checkpoint()
    box.kill()
    last = box.log_files()[-1]
    first = int(last.stem)
    if harm == "bad":
        last.write_bytes(b"\xff" * last.stat().st_size)
    elif harm == "short":
        last.write_bytes(b"")
    else:
        last.unlink()
    log = box.open()

    assert log.end_offset == 40
    assert log.damaged == (DamagedRange(Offset(first), Offset(40)),)
    with pytest.raises(LogDamaged):
        log.read(Offset(first), 1, log.end_offset)
    assert log.read(Offset(0), 1, log.end_offset).data == stored(batches[0])
    assert log.read(Offset(first - 2), 1 << 20, log.end_offset).next_offset == first
    more = make.fill(log, 2)
    assert read_all(log, offset=40) == stored(*more)
    log.sync()
    box.stop()
    assert read_all(box.open(), offset=40) == stored(*more)


@EVERY_DURABILITY
def test_a_lost_end_of_a_closed_segment(box: LogBox, make: BatchMaker, durability: Durability) -> None:
    """Batches missing between two segments are damage with `synced` durability, and end the log with `replicated`."""
    log = box.open(replace(SMALL, durability=durability))
    batches = make.fill(log, 20)
    box.kill()
    first, second, *_ = box.log_files()
    start, stop = int(second.stem) - 2, int(second.stem)
    first.write_bytes(first.read_bytes()[: -batches[0].nbytes])
    log = box.open()

    if durability is Durability.SYNCED:
        assert log.damaged == (DamagedRange(Offset(start), Offset(stop)),)
        assert read_all(log, offset=stop) == stored(*batches[stop // 2 :])
        assert read_all(start_again(box), offset=stop) == stored(*batches[stop // 2 :])
    else:
        assert log.damaged == ()
        assert read_all(log) == stored(*batches[: start // 2])


def test_neighbouring_damage_is_one_range(box: LogBox, make: BatchMaker) -> None:
    """Two adjacent bad batches form one damaged range, and reads continue after the range."""
    log = box.open(SMALL)
    batches = make.fill(log, 20)
    box.kill()
    damage_batch(box, batches, 8)
    damage_batch(box, batches, 9)
    log = box.open()

    assert log.damaged == (DamagedRange(Offset(16), Offset(20)),)
    assert read_all(log, offset=20) == stored(*batches[10:])


def test_nothing_is_scanned_after_a_stop_in_order(box: LogBox, make: BatchMaker) -> None:
    """A start after a clean stop computes no checksum and counts every record as synced."""
    log = box.open(SMALL)
    batches = make.fill(log, 50)
    box.stop()
    log = box.open()

    assert box.opened.was_clean
    assert log.recovery_report.scanned_bytes == 0
    assert (log.synced_offset, log.end_offset) == (100, 100)
    assert read_all(log) == stored(*batches)


def test_only_what_lies_past_the_recovery_point_is_scanned(box: LogBox, make: BatchMaker) -> None:
    """A start after a kill verifies the checksums of exactly the batches past the recovery point."""
    log = box.open(SMALL)
    make.fill(log, 50)
    log.sync()
    box.opened.write_checkpoint()
    batches = make.fill(log, 7)
    log = start_again(box)

    assert not box.opened.was_clean
    assert log.recovery_report.scanned_bytes == len(stored(*batches))
    assert (log.synced_offset, log.end_offset) == (100, 114)


def test_a_kill_costs_a_walk_from_the_last_index_entry(
    box: LogBox, make: BatchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start after a kill reads few headers below the recovery point, not all headers of a segment of 24 MB."""
    config = TopicConfig(index_interval_bytes=4096)
    log = box.open(config)
    begin(log)
    make.fill(log, 240, 1, 100_000)
    log.sync()
    log.save_producers_if_due()
    box.opened.write_checkpoint()
    nbytes = count_read_bytes(monkeypatch)
    log = start_again(box)

    assert log.end_offset == 240
    assert nbytes() < 1 << 19


def count_read_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that counts the bytes read from now on."""
    from fairlead_broker.log.segments.storage import PosixFile

    counts: list[int] = []
    read_into = PosixFile.read_into

    def counted(self: PosixFile, buffer: memoryview, position: int) -> int:
        counts.append(len(buffer))
        return read_into(self, buffer, position)

    monkeypatch.setattr(PosixFile, "read_into", counted)
    return lambda: sum(counts)


def test_stale_index_entries_are_gone_before_new_batches(box: LogBox, make: BatchMaker) -> None:
    """The index entry of a batch that was cut is removed, so that it cannot point into a later batch."""
    config = TopicConfig(index_interval_bytes=0, durability=Durability.REPLICATED)
    log = box.open(config)
    batches = make.fill(log, 10, 1, 10)
    log.sync()
    box.opened.write_checkpoint()
    make.fill(log, 10, 1, 300)
    log.close()
    box.kill()
    whole = box.log_files()[0].read_bytes()
    box.log_files()[0].write_bytes(whole[: len(stored(*batches)) + 100])
    log = box.open()
    batches += make.fill(log, 30, 1, 10)
    log.sync()
    box.opened.write_checkpoint()
    log = start_again(box)

    for offset in range(40):
        assert log.read(Offset(offset), 1, log.end_offset).data == stored(batches[offset])


def test_epochs_behind_a_cut_are_dropped(box: LogBox, make: BatchMaker) -> None:
    """A leader epoch that starts after the new log end is dropped, and an epoch that starts at the end stays."""
    log = box.open()
    begin(log, 1)
    batches = make.fill(log, 3)
    begin(log, 2)
    make.fill(log, 3)
    begin(log, 3)
    box.kill()
    box.log_files()[0].write_bytes(stored(*batches) + b"torn")
    log = box.open()

    assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs] == [(1, 0), (2, 6)]


@pytest.mark.parametrize("harm", ["missing", "header", "last entry", "first entry"])
def test_a_lost_list_of_epochs_is_made_from_the_batches(box: LogBox, make: BatchMaker, harm: str) -> None:
    """A lost or damaged list of leader epochs is rebuilt from the batch headers."""
    log = box.open(SMALL)
    for epoch in (1, 2, 5):
        begin(log, epoch)
        make.leader_epoch = epoch
        make.fill(log, 10)
    box.stop()
    path = box.folder / "leader-epochs"
    data = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    else:
        data[{"header": 3, "last entry": -1, "first entry": 20}[harm]] ^= 1
        path.write_bytes(data)
    log = box.open()

    assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs] == [(1, 0), (2, 20), (5, 40)]
    log = start_again(box)
    assert [(entry.epoch, entry.start_offset) for entry in log.leader_epochs] == [(1, 0), (2, 20), (5, 40)]


def test_a_batch_of_a_later_format_is_not_cut(box: LogBox, make: BatchMaker) -> None:
    """A log with a batch of a later format refuses to open, instead of cutting the batch."""
    log = box.open()
    batch = make.fill(log, 2)[1]
    box.kill()
    content = bytearray(batch.content)
    content[0] = 9
    stamp = batch.stamp[:-4] + checksum(content, 0, len(content)).to_bytes(4, "little")
    path = box.log_files()[0]
    path.write_bytes(path.read_bytes()[: -batch.nbytes] + stamp + content)
    before = path.read_bytes()

    with raises(UnknownFormat, 9):
        box.open()
    assert path.read_bytes() == before
    assert len(stamp) == STAMP_BYTES


def test_leftovers_of_an_interrupted_removal_are_cleared(box: LogBox, make: BatchMaker) -> None:
    """A start removes index files without batches, and segments wholly below the log start."""
    log = box.open(SMALL)
    make.fill(log, 30)
    log.sync()
    log.checkpoint_high_watermark = log.end_offset
    kept = {path: path.read_bytes() for path in Path(box.folder).iterdir()}
    log.advance_log_start(Offset(30))
    box.stop()
    for path, data in kept.items():
        if not path.exists() and path.suffix != ".index":
            path.write_bytes(data)
    (box.folder / "00000000000000000002.producers").write_bytes(b"x")
    log = box.open()

    assert log.log_start_offset == 30
    names = {
        path.stem for path in box.folder.iterdir() if path.suffix in {".index", ".timeindex", ".producers"}
    }
    assert names <= {path.stem for path in box.log_files()}
    assert box.log_files()[1].stem > f"{30:020d}" >= box.log_files()[0].stem


@EVERY_DURABILITY
@pytest.mark.parametrize("harm", ["content", "length", "lost"])
def test_a_bad_last_batch_below_the_synced_offset_is_damage(
    box: LogBox, make: BatchMaker, durability: Durability, harm: str
) -> None:
    """Bad synced batches after the last checkpoint are damage, and their offsets are not assigned again."""
    log = box.open(TopicConfig(durability=durability))
    batches = make.fill(log, 3)
    box.opened.write_checkpoint()
    batches += make.fill(log, 3)
    log.sync()
    box.kill()
    path = box.log_files()[0]
    content = bytearray(path.read_bytes())
    begin_at = len(content) - batches[-1].nbytes
    if harm == "lost":
        del content[begin_at + 50 :]
    else:
        content[begin_at + (9 if harm == "length" else 200)] ^= 4
    path.write_bytes(content)
    for _ in range(2):
        log = box.open()
        assert (log.end_offset, log.synced_offset) == (12, 12)
        assert log.damaged == (DamagedRange(Offset(10), Offset(12)),)
        assert log.recovery_report.cuts == []
        box.kill()
    log = box.open()
    following = make.fill(log, 1)

    assert following[0].base_offset == 12
    assert log.read(Offset(0), 1 << 20, log.end_offset).data == stored(*batches[:5])
    assert log.read(Offset(12), 1 << 20, log.end_offset).data == stored(*following)


@EVERY_DURABILITY
def test_a_torn_tail_behind_the_synced_offset_is_cut(
    box: LogBox, make: BatchMaker, durability: Durability
) -> None:
    """A torn batch that no sync covered is cut, regardless of earlier syncs."""
    log = box.open(TopicConfig(durability=durability))
    batches = make.fill(log, 3)
    log.sync()
    make.fill(log, 1)
    box.kill()
    path = box.log_files()[0]
    path.write_bytes(path.read_bytes()[:-5])
    log = box.open()

    assert (log.end_offset, log.synced_offset, log.damaged) == (6, 6, ())
    assert len(log.recovery_report.cuts) == 1
    assert read_all(log) == stored(*batches)
