"""One flipped bit in the header of a stored batch: only that batch is reported as damaged, for every bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_api.batch.batches import decode_records
from fairlead_api.batch.header import iterate_headers
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.log import LogDamaged, PartitionLog, SegmentScrub
from log_kit import FIRST_TIME_US, BatchMaker, LogBox, begin

BASE_OFFSET_AT, FORMAT_AT, LAST_OFFSET_DELTA_AT = 0, 36, 40
BITS = [
    pytest.param(8 * BASE_OFFSET_AT + 8, id="base offset"),
    pytest.param(8 * FORMAT_AT + 1, id="format"),
    *(pytest.param(8 * LAST_OFFSET_DELTA_AT + bit, id=f"last offset, bit {bit}") for bit in (0, 4, 31)),
    *(
        pytest.param(8 * LAST_OFFSET_DELTA_AT + bit, id=f"last offset, bit {bit}", marks=pytest.mark.scenario)
        for bit in (2, 8)
    ),
]
SMALL = TopicConfig(segment_bytes=4096, index_interval_bytes=1500)
BATCHES, RECORDS = 14, 3


def flip(box: LogBox, number: int, bit: int) -> None:
    """Flip a bit of the batch with this number."""
    for path in box.log_files():
        data = bytearray(path.read_bytes())
        for at, header in iterate_headers(bytes(data)):
            if header.base_offset == RECORDS * number:
                data[at + bit // 8] ^= 1 << bit % 8
                with path.open("r+b") as file:
                    file.write(data)
                return


def served(log: PartitionLog, offset: int) -> set[int]:
    """Return the offsets of the first batch that a read at an offset returns, or none if the read reports damage."""
    try:
        read = log.read_cached(Offset(offset), 1, log.end_offset) or log.read(
            Offset(offset), 1, log.end_offset
        )
    except LogDamaged as damaged:
        return set() if damaged.first_offset <= offset < damaged.next_good_offset else {-1}
    assert read.data, f"neither a batch nor damage at offset {offset}"
    try:
        return {record.offset for record in decode_records(read.data)}
    except ProblemError:
        return set()


def judge(log: PartitionLog, number: int) -> None:
    """Check that reads and scrubs report only the damaged batch, and that reads serve all other batches."""
    harmed = set(range(RECORDS * number, RECORDS * (number + 1)))
    assert log.end_offset == RECORDS * BATCHES
    for _ in range(2):
        for offset in range(log.end_offset):
            found = served(log, offset)
            assert (offset in found) is (offset not in harmed), f"{offset}: {found}"
        for segment in log.segments:
            scrub = SegmentScrub(log, segment)
            while scrub.step():
                pass
            scrub.finish()
        told = [range(each.first_offset, each.next_good_offset) for each in log.damaged]
        assert {offset for each in told for offset in each} == harmed
    for other in set(range(BATCHES)) - {number}:
        time_us = TimestampUs(FIRST_TIME_US + 1000 * other)
        try:
            assert log.offset_for_time(time_us) == (RECORDS * other, time_us)
        except LogDamaged:
            assert other >= number


@pytest.mark.parametrize(
    "number",
    [0, 5, BATCHES - 1, *(pytest.param(each, marks=pytest.mark.scenario) for each in (4, BATCHES - 2))],
)
@pytest.mark.parametrize("when", ["stopped", "killed", "running"])
@pytest.mark.parametrize("bit", BITS)
def test_only_the_batch_itself_is_damaged(tmp_path: Path, bit: int, when: str, number: int) -> None:
    """A flipped header bit damages only its own batch, wherever the batch is in a closed or the last segment."""
    box, make = LogBox(tmp_path / "data", SMALL), BatchMaker(stamp_flags=1)
    log = box.open()
    begin(log)
    for batch in range(BATCHES):
        make.append_time_us = FIRST_TIME_US + 1000 * batch
        make.fill(log, 1, RECORDS, 50)
    log.sync()
    if when == "stopped":
        box.stop()
    elif when == "killed":
        box.opened.write_checkpoint()
        box.kill()
    flip(box, number, bit)
    judge(log if when == "running" else box.open(), number)
    box.kill()
