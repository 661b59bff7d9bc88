"""Tests of how one task reads from a real broker: the prefetch limit, and the errors when brokers have stopped."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from cluster_kit import until
from fairlead import clock, testing
from fairlead.blocking import Admin, Producer
from fairlead.errors import UnreachableError
from fairlead.reading.cursors import Prefetch
from fairlead_spark.clients import Connection, connection
from fairlead_spark.planning.ranges import OffsetRange
from fairlead_spark.source.range_read import SETTINGS, RangeRead, parting_of

VALUE_BYTES = 64 << 10
RECORDS = 1024
"""Number of records in both partitions, which is more than the buffer may contain."""
RETRY_SECONDS = 2.0


def fill(bootstrap: str, topic: str) -> list[OffsetRange]:
    """Store 64 MiB in two partitions, and return the ranges of all records."""
    with Admin(bootstrap) as admin:
        topic_id = admin.create_topic(topic, partitions=2).topic_id
    with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%0*d" % (VALUE_BYTES, number), partition=number % 2)
        producer.flush()
    return [OffsetRange(topic, topic_id, index, 0, RECORDS // 2) for index in range(2)]


async def at_rest(prefetch: Prefetch) -> tuple[int, int]:
    """Wait until no fetch is in flight, and return the buffered bytes and the number of fetched records."""
    cursors = prefetch.cursors.values()
    await until(
        lambda: not prefetch.due(clock.monotonic()) and not any(cursor.in_flight for cursor in cursors),
        "fetching never comes to rest",
    )
    return sum(cursor.buffered_bytes for cursor in cursors), sum(cursor.fetch_offset for cursor in cursors)


def read_of(link: Connection, ranges: list[OffsetRange]) -> RangeRead:
    """Return the read of the given ranges."""
    return RangeRead(link, ranges, fail_on_data_loss=True)


def test_the_next_part_is_there_while_one_is_held(bootstrap: str, topic: str) -> None:
    """While a task processes a batch, the next answers arrive, up to the size of the buffer."""
    ranges = fill(bootstrap, topic)
    link = connection(bootstrap)
    read = read_of(link, ranges)
    waiting: list[int] = []
    in_memory: list[int] = []
    found: set[tuple[int, int]] = set()

    for batch in read.batches():
        if len(waiting) < 5:
            waiting_bytes, fetched = link.run(at_rest(read._prefetch))
            waiting.append(waiting_bytes)
            in_memory.append((fetched - len(found)) * VALUE_BYTES)
        found |= {(batch.partition, offset) for offset in batch.offsets}

    room = SETTINGS.prefetch_bytes + 2 * SETTINGS.fetch_bytes_max
    assert min(waiting) >= SETTINGS.fetch_bytes_max
    assert max(waiting) <= room
    # In addition to the buffer, memory contains answers that the read has taken and not yet yielded, at most the size
    # of another buffer.
    assert max(in_memory) <= 2 * room < RECORDS * VALUE_BYTES
    assert found == {(index, offset) for index in range(2) for offset in range(RECORDS // 2)}


@pytest.mark.scenario
def test_a_task_whose_brokers_vanish_ends_in_time(topic: str) -> None:
    """Fetched records are delivered; afterwards an error names the partition, the offset and the retry option."""
    with ExitStack() as stack:
        bootstrap = stack.enter_context(testing.running_cluster())
        ranges = fill(bootstrap, topic)
        batches = read_of(connection(bootstrap, RETRY_SECONDS), ranges).batches()
        next(batches)
        stack.close()
        began = clock.monotonic()
        with pytest.raises(UnreachableError) as told:
            list(batches)
        seconds = clock.monotonic() - began

    assert f"{topic}-" in str(told.value)
    assert "option retryTimeout" in str(told.value)
    assert f"arrived for {RETRY_SECONDS:g} s" in str(told.value)
    assert RETRY_SECONDS <= seconds < 10 * RETRY_SECONDS


def test_where_a_log_parts_is_not_guessed(topic: str) -> None:
    """If a leader does not answer, the divergence is not guessed: a query could skip the leader's new records."""
    with testing.running_cluster() as bootstrap, Admin(bootstrap) as admin:
        topic_id = admin.create_topic(topic).topic_id
    with pytest.raises(UnreachableError):
        parting_of(connection(bootstrap, RETRY_SECONDS), OffsetRange(topic, topic_id, 0, 6, 7, 1))
