"""An intact batch of an earlier leader epoch that a lost write has left in the log is damage."""

from __future__ import annotations

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import DamagedRange, LogDamaged, SegmentScrub
from log_kit import BatchMaker, LogBox, StampedBatch, begin, read_all, stored

SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=1000)
LARGE = TopicConfig(index_interval_bytes=1)


def leave_stale(box: LogBox, make: BatchMaker, batches: list[StampedBatch], *numbers: int) -> None:
    """Overwrite stored batches with the batches that a leader of an earlier epoch appended at the same offsets."""
    make.leader_epoch -= 1
    for number in numbers:
        data = stored(batches[number])
        stale = stored(make(batches[number].base_offset, 2))
        assert len(stale) == len(data)
        [path] = [each for each in box.log_files() if data in each.read_bytes()]
        path.write_bytes(path.read_bytes().replace(data, stale))


@pytest.mark.parametrize("numbers", [(1,), (7,), (7, 8), (19,)])
def test_a_scrub_finds_stale_batches(box: LogBox, make: BatchMaker, numbers: tuple[int, ...]) -> None:
    """A scrub notes the offsets of batches whose leader epoch is below that of the batch before them."""
    log = box.open(LARGE)
    batches = make.fill(log, 20)
    log.sync()
    leave_stale(box, make, batches, *numbers)
    walk = SegmentScrub(log, log.segments[0])
    while walk.step():
        pass
    damage = DamagedRange(Offset(2 * numbers[0]), Offset(2 * numbers[-1] + 2))

    assert walk.finish() == (damage,)
    assert log.damaged == (damage,)
    with pytest.raises(LogDamaged):
        log.read(damage.first_offset, 1 << 20, log.end_offset)


@pytest.mark.parametrize("config", [LARGE, TopicConfig(index_interval_bytes=600), TopicConfig()])
@pytest.mark.parametrize("numbers", [(1,), (7,), (7, 8), (18,)])
def test_a_read_does_not_serve_stale_batches(
    box: LogBox, make: BatchMaker, config: TopicConfig, numbers: tuple[int, ...]
) -> None:
    """A read ends before stale batches, whether the index names them or not, and the next read reports the damage."""
    log = box.open(config)
    batches = make.fill(log, 20)
    leave_stale(box, make, batches, *numbers)
    first, following = Offset(2 * numbers[0]), Offset(2 * numbers[-1] + 2)
    cached = log.read_cached(Offset(0), 1 << 20, log.end_offset)
    read = log.read(Offset(0), 1 << 20, log.end_offset)

    assert cached is None
    assert read.data == stored(*batches[: numbers[0]])
    assert read.next_offset == first
    with pytest.raises(LogDamaged) as refused:
        log.read(first, 1 << 20, log.end_offset)
    assert (refused.value.first_offset, refused.value.next_good_offset) == (first, following)
    assert read_all(log, offset=following) == stored(*batches[numbers[-1] + 1 :])


@pytest.mark.parametrize("config", [LARGE, SMALL, TopicConfig()])
@pytest.mark.parametrize("numbers", [(0,), (7,), (7, 8), (12,), (18, 19)])
@pytest.mark.parametrize("finder", ["first", "amid", "scrub"])
def test_the_list_of_leader_epochs_shows_stale_batches(
    box: LogBox, make: BatchMaker, config: TopicConfig, numbers: tuple[int, ...], finder: str
) -> None:
    """Reads and scrubs find stale batches at the start of a read, segment or epoch, even after good batches only."""
    log, make.leader_epoch = box.open(config), 3
    begin(log, 3)
    batches = make.fill(log, 12)
    make.leader_epoch = 4
    begin(log, 4)
    batches += make.fill(log, 8)
    make.leader_epoch = 4 if numbers[0] >= 12 else 3
    leave_stale(box, make, batches, *numbers)
    first, following = Offset(2 * numbers[0]), Offset(2 * numbers[-1] + 2)
    at = Offset(0)
    if finder == "scrub":
        for segment in log.segments:
            walk = SegmentScrub(log, segment)
            while walk.step():
                pass
            walk.finish()
    elif finder == "first":
        assert log.read_cached(first, 1, log.end_offset) is None
    while finder == "amid" and at < first:
        read = log.read(at, 1 << 20, log.end_offset)
        assert read.data == stored(*batches[at // 2 : read.next_offset // 2])
        at = read.next_offset

    with pytest.raises(LogDamaged) as refused:
        log.read(first, 1, log.end_offset)
    assert (refused.value.first_offset, refused.value.next_good_offset) == (first, following)
    assert read_all(log, offset=following) == stored(*batches[numbers[-1] + 1 :])


@pytest.mark.parametrize("number", [1, 7, 18])
def test_a_recovery_finds_stale_batches(box: LogBox, make: BatchMaker, number: int) -> None:
    """A recovery reports a stale batch past the recovery point, even if it is the first batch of a segment."""
    log = box.open(SMALL)
    batches = make.fill(log, 20)
    box.kill()
    leave_stale(box, make, batches, number)
    log = box.open()

    assert log.damaged == (DamagedRange(Offset(2 * number), Offset(2 * number + 2)),)
    assert read_all(log, offset=2 * number + 2) == stored(*batches[number + 1 :])
