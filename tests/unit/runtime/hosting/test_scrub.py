"""Passes of the scrub over the partitions of a runtime: extent, speed, start and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from fairlead_broker.clock import Clock, SystemClock
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.hosting.scrub import BYTES_PER_SECOND_MIN, Scrub
from log_kit import SteppingClock
from runtime_kit import TopicClient, topic

FAST = 1 << 40
PASS_SECONDS = 100.0


@dataclass(slots=True)
class Counted:
    """The counters of a scrub."""

    steps: list[int] = field(default_factory=list)
    damaged: int = 0

    def found(self, ranges: int) -> None:
        """Count damaged ranges."""
        self.damaged += ranges


def scrub_of(
    flights: TopicClient,
    counted: Counted,
    *,
    clock: Clock | None = None,
    pass_seconds: float = PASS_SECONDS,
    bytes_per_second_max: int = FAST,
) -> Scrub:
    """Return a scrub of one partition."""
    return Scrub(
        lambda: [flights.handle()],
        flights.broker.disk,
        clock or SystemClock(),
        pass_seconds=pass_seconds,
        bytes_per_second_max=bytes_per_second_max,
        count_bytes=counted.steps.append,
        count_damaged=counted.found,
        log=structlog.get_logger(),
    )


@pytest.fixture
async def flights(runtime: Broker) -> TopicClient:
    """Return a topic without records whose segments can be rolled at once."""
    return await topic(runtime, segment_ms=1)


async def fill(flights: TopicClient, sizes: Sequence[int]) -> list[int]:
    """Store one record of each size in a separate segment, and return the sizes of the segments."""
    for count, size in enumerate(sizes, 1):
        await flights.produce(b"x" * size)
        while flights.handle().log.segment_count == count:
            await flights.broker.upkeep.look_after_segments()
    return [segment.size for segment in flights.handle().log.segments]


def flip(path: Path) -> None:
    """Flip a bit of a value in the last batch of a segment."""
    data = bytearray(path.read_bytes())
    data[-500] ^= 1
    path.write_bytes(data)


async def test_a_pass_reads_every_byte_of_every_segment(flights: TopicClient) -> None:
    """A pass reads every byte of every segment, and finds no damage in an intact log."""
    sizes, counted = await fill(flights, [100, 2000, 30_000]), Counted()

    assert await scrub_of(flights, counted).run_pass() == sum(sizes)
    assert sorted(counted.steps) == sorted(size for size in sizes if size)
    assert counted.damaged == 0


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
async def test_a_pass_begins_where_an_undisturbed_one_would_be(flights: TopicClient, share: float) -> None:
    """After a restart, a pass begins where an uninterrupted pass would be, and not at the first partition again."""
    sizes, counted = await fill(flights, [100, 2000, 30_000]), Counted()
    clock = SteppingClock(round((7 + share) * PASS_SECONDS * 1e6))
    await scrub_of(flights, counted, clock=clock).run_pass()
    first = int(share * len(sizes))

    assert counted.steps == [size for size in sizes[first:] + sizes[:first] if size]


async def test_a_pass_keeps_below_its_speed(flights: TopicClient) -> None:
    """A pass does not exceed its speed limit, even with a small log."""
    sizes, counted, clock = await fill(flights, [100_000, 100_000]), Counted(), SystemClock()
    limit = BYTES_PER_SECOND_MIN // 4
    begun = clock.monotonic()
    await scrub_of(flights, counted, bytes_per_second_max=limit).run_pass()

    assert clock.monotonic() - begun >= sum(sizes) / limit * 0.99


async def test_damage_is_logged_and_counted_once(flights: TopicClient) -> None:
    """Damage is logged with topic, partition and range, and counted once over several passes."""
    await fill(flights, [100, 2000, 30_000])
    counted = Counted()
    flip(flights.handle().log.segments[1].path)
    with capture_logs() as events:
        for _ in range(2):
            await scrub_of(flights, counted).run_pass()
    [told] = [event for event in events if event["event"] == "records damaged"]

    assert (told["topic"], told["partition"], told["found"]) == ("flights", 0, "scrub")
    assert (told["first_offset"], told["next_good_offset"]) == (1, 2)
    assert counted.damaged == 1


async def test_what_is_gone_by_then_is_left_to_the_next_pass(flights: TopicClient) -> None:
    """A segment that is closed, cut or expired during a pass does not fail the pass."""
    await fill(flights, [100, 2000])
    counted = Counted()
    scrub = scrub_of(flights, counted)
    flights.handle().log.close()
    with capture_logs() as events:
        read = await scrub.run_pass()

    assert read == sum(counted.steps)
    assert counted.damaged == 0
    assert events == []
