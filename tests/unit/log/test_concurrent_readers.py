"""Readers that run while a writer appends, rolls, syncs and removes segments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from fairlead_api.configuration import Durability, TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log import OffsetOutOfRange, PartitionLog
from log_kit import BatchMaker, LogBox, begin, stored

CONFIG = TopicConfig(segment_bytes=20_000, index_interval_bytes=1000, durability=Durability.REPLICATED)
BATCHES = 1500


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Make the interpreter switch between threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def follow(log: PartitionLog, expected: bytes, starts: dict[int, int], done: Event, *, cached: bool) -> int:
    """Compare reads until the writer is done, skip forward if the log start moves, and return the number of reads."""
    at, reads = Offset(0), 0
    while not (done.is_set() and at >= log.end_offset):
        try:
            end = log.end_offset
            found = log.read_cached(at, 5000, end) if cached else None
            found = found or log.read(at, 5000, end)
        except OffsetOutOfRange as refused:
            if at >= refused.log_start:
                raise
            at = Offset(min(offset for offset in starts if offset >= refused.log_start))
            continue
        if found.data:
            position = starts[at]
            assert found.data == expected[position : position + len(found.data)]
            assert starts[found.next_offset] == position + len(found.data)
        at = found.next_offset
        reads += 1
    return reads


@pytest.mark.usefixtures("eager_threads")
def test_readers_see_whole_batches_while_everything_moves(box: LogBox, make: BatchMaker) -> None:
    """A reader gets exactly the written bytes while a log appends, rolls, syncs, checkpoints and removes segments."""
    log = box.open(CONFIG)
    begin(log)
    batches = [make(2 * number, 2, number % 50) for number in range(BATCHES)]
    expected, starts, position = stored(*batches), {}, 0
    for batch in batches:
        starts[int(batch.base_offset)] = position
        position += batch.nbytes
    starts[2 * BATCHES] = position
    done = Event()

    def write() -> None:
        try:
            for number in range(0, BATCHES, 3):
                log.append(batches[number : number + 3])
                log.checkpoint_high_watermark = log.end_offset
                if number % 300 == 0 and number:
                    log.advance_log_start(Offset(2 * number - 500 if number > 300 else 0))
        finally:
            done.set()

    def sync() -> None:
        while not done.is_set():
            assert log.synced_offset <= log.sync() <= log.end_offset
            box.opened.write_checkpoint()

    with ThreadPoolExecutor(5) as pool:
        readers: list[Future[int]] = [
            pool.submit(follow, log, expected, starts, done, cached=cached) for cached in (True, False, True)
        ]
        others = [pool.submit(sync), pool.submit(write)]
        reads = [reader.result() for reader in readers]
        for other in others:
            other.result()

    assert min(reads) > 10
    assert log.end_offset == 2 * BATCHES
    assert log.log_start_offset > 1000
    assert log.sync() == log.end_offset
