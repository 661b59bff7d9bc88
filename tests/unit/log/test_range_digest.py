from __future__ import annotations

import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import OffsetOutOfRange, PartitionLog, digest_range
from log_kit import BatchMaker, LogBox

SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=1000)
EVERYTHING = 1 << 40


def offsets(log: PartitionLog, *pair: int) -> tuple[str, int, int | None]:
    """Return the digest, the end offset and the first damaged offset of a range."""
    found = digest_range(log, Offset(pair[0]), Offset(pair[1]), EVERYTHING)
    return found.digest, found.next_offset, found.damaged_offset


def test_segments_do_not_matter(box: LogBox, make: BatchMaker) -> None:
    """A range digest depends on the stored bytes, not on segment boundaries, and its pieces cover the same offsets."""
    log = box.open(SMALL)
    make.fill(log, 20)
    end = log.end_offset
    pieces, at = 0, Offset(0)
    while at < end:
        found = digest_range(log, at, end, 1)
        assert found.next_offset > at
        at, pieces = found.next_offset, pieces + 1

    assert len(log.segments) > 1
    assert offsets(log, 0, end) == (offsets(log, 0, end)[0], end, None)
    assert pieces == 20
    assert offsets(log, 0, end)[0] != offsets(log, 0, at - 1)[0]


def test_a_batch_that_reaches_the_end_is_left_out(box: LogBox, make: BatchMaker) -> None:
    """A range digest includes a batch that begins before the range, and excludes a batch that ends after the range."""
    log = box.open()
    make.fill(log, 3, 10)

    assert offsets(log, 0, 15)[1] == 10
    assert offsets(log, 5, 20) == offsets(log, 0, 20)
    assert offsets(log, 11, 15)[1] == 11


@pytest.mark.parametrize("at", [100, 2500], ids=["a value", "far in"])
def test_damage_is_reported_and_stepped_over(box: LogBox, make: BatchMaker, at: int) -> None:
    """A range digest reports a damaged offset, and ends at the same offset as without damage."""
    log = box.open(SMALL)
    make.fill(log, 20)
    end = log.end_offset
    good = offsets(log, 0, end)[0]
    path = box.log_files()[0]
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    digest, next_offset, damaged = offsets(log, 0, end)

    assert (digest != good, next_offset) == (True, end)
    assert damaged is not None
    assert 0 <= damaged < end


def test_known_damage_is_reported_too(box: LogBox, make: BatchMaker) -> None:
    """A range digest reports damage that was found before, without reading the damaged batch again."""
    log = box.open(SMALL)
    make.fill(log, 20)
    end = log.end_offset
    path = box.log_files()[0]
    data = bytearray(path.read_bytes())
    data[8:12] = b"\xff" * 4
    path.write_bytes(data)
    found = [offsets(log, 0, end) for _ in range(2)]

    assert [each[1:] for each in found] == [(end, 0)] * 2


def test_outside_of_the_log_there_is_nothing(box: LogBox, make: BatchMaker) -> None:
    """A range digest beyond the log end is refused with `OffsetOutOfRange`, as a read is."""
    log = box.open()
    make.fill(log, 3)

    with pytest.raises(OffsetOutOfRange):
        offsets(log, log.end_offset + 1, log.end_offset + 2)
