"""Producer ids in blocks, and producer names with epochs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead_api.identifiers import ProducerEpoch, TimestampUs
from fairlead_api.problems import SideEffect
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.producer_registry import (
    ATTEMPTS_MAX,
    BLOCK_IDS,
    EPOCH_MAX,
    NAME_IDLE_US,
    AllocatedProducer,
    ProducerRegistry,
)
from fairlead_broker.coordination.protocol import CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import ProducerIdsRecord, ProducerNameRecord, decode, encode
from fairlead_broker.registry.store_writes import Get, Put
from refusals import refuses

KEYS = Keys("test")
WEEK_SECONDS = NAME_IDLE_US / 1e6


class WallClock:
    """A clock that advances only when a test advances it."""

    seconds = 1_000_000.0
    ahead_seconds = 0.0

    def now_us(self) -> TimestampUs:
        """Return the wall-clock time, which may be wrong."""
        return TimestampUs(int((self.seconds + self.ahead_seconds) * 1e6))

    def monotonic(self) -> float:
        """Return the monotonic time."""
        return self.seconds


class Spoilt:
    """A real store whose next transactions may fail."""

    def __init__(self, store: EmbeddedCoordination) -> None:
        self.store = store
        self.wrong: list[Any] = []
        """Fault of each upcoming transaction: None, an error instead of it, or ('after', error)."""

    async def transact(self, *about: Any) -> Any:
        """Run the transaction or raise its fault."""
        fault = self.wrong.pop(0) if self.wrong else None
        if isinstance(fault, Exception):
            raise fault
        result = await self.store.transact(*about)
        if fault is not None:
            raise fault[1]
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Spoilt]:
    """Yield a store on disk."""
    opened = await EmbeddedCoordination.open(tmp_path / "store.sqlite", WallClock())
    yield Spoilt(opened)
    await opened.close()


def registry(store: Spoilt, clock: WallClock | None = None) -> ProducerRegistry:
    """Return a broker's registry on the store."""
    return ProducerRegistry(store, KEYS, clock or WallClock())  # type: ignore[arg-type]


async def stored(store: Spoilt, name: str) -> ProducerNameRecord | None:
    """Return the stored record of a name."""
    [item] = (await store.store.transact((), (Get(KEYS.producer_name(name)),))).reads
    return decode(item.key, item.value, ProducerNameRecord) if item else None


async def test_a_block_is_taken_once_and_used_up(store: Spoilt) -> None:
    """A block of ids is used up before the next block is reserved, and no id is allocated twice."""
    ours = registry(store)

    ids = [(await ours.allocate(None)).producer_id for _ in range(BLOCK_IDS + 1)]
    [item] = (await store.store.transact((), (Get(KEYS.producer_ids),))).reads

    assert ids == list(range(BLOCK_IDS + 1))
    assert item is not None
    assert decode(item.key, item.value, ProducerIdsRecord).next_id == 2 * BLOCK_IDS


async def test_brokers_and_lives_share_no_id(store: Spoilt) -> None:
    """Brokers and incarnations never share a producer id, because each allocates its own blocks."""
    registries = [registry(store) for _ in range(5)]

    answers = await asyncio.gather(*(each.allocate(None) for each in registries for _ in range(20)))

    assert len({answer.producer_id for answer in answers}) == 100
    assert {answer.producer_epoch for answer in answers} == {0}


async def test_a_name_keeps_its_id_and_counts_epochs(store: Spoilt) -> None:
    """A producer name keeps its id and gets the next epoch, whichever broker allocates the epoch."""
    first = await registry(store).allocate("spark-1")
    second = await registry(store).allocate("spark-1")
    other = await registry(store).allocate("spark-2")

    assert second == AllocatedProducer(first.producer_id, ProducerEpoch(1))
    assert other.producer_id != first.producer_id


async def test_callers_of_one_name_at_once_get_an_epoch_each(store: Spoilt) -> None:
    """Concurrent requests for one producer name get different epochs."""
    registries = [registry(store) for _ in range(4)]

    answers = await asyncio.gather(*(each.allocate("spark-1") for each in registries for _ in range(3)))

    assert len({answer.producer_id for answer in answers}) == 1
    assert sorted(answer.producer_epoch for answer in answers) == list(range(12))


async def test_a_name_that_is_out_of_epochs_gets_a_new_id(store: Spoilt) -> None:
    """A producer name whose epochs are used up gets a new id."""
    ours = registry(store)
    first = await ours.allocate("spark-1")
    record = ProducerNameRecord(
        producer_id=first.producer_id, producer_epoch=ProducerEpoch(EPOCH_MAX), used_us=TimestampUs(0)
    )
    await store.store.transact((), (Put(KEYS.producer_name("spark-1"), encode(record)),))

    after = await ours.allocate("spark-1")

    assert after.producer_id != first.producer_id
    assert after.producer_epoch == 0


async def test_an_unknown_outcome_costs_an_epoch_or_a_block(store: Spoilt) -> None:
    """An allocation with an unknown outcome skips an epoch or a block, which may have been written."""
    ours = registry(store)
    await ours.allocate("spark-1")
    store.wrong = [None, ("after", UnknownOutcome("lost"))]
    name = await ours.allocate("spark-1")
    fresh = registry(store)
    store.wrong = [None, ("after", UnknownOutcome("lost"))]
    number = await fresh.allocate(None)

    assert name.producer_epoch == 2
    assert number.producer_id == 2 * BLOCK_IDS


async def test_a_store_that_is_away_is_said_so(store: Spoilt) -> None:
    """An allocation on an unavailable store fails without a side effect."""
    store.wrong = [CoordinationUnavailable("away")]

    with refuses("coordination_unavailable") as refused:
        await registry(store).allocate(None)

    assert refused.value.side_effect is SideEffect.NONE


@pytest.mark.parametrize("name", [None, "spark-1"])
async def test_an_allocation_that_always_loses_gives_up(store: Spoilt, name: str | None) -> None:
    """An allocation that loses every compare-and-set fails after a limited number of attempts."""
    ours = registry(store)
    if name is not None:
        # The first allocation reserves a block of ids. While ids of the block remain, each further attempt is
        # one read and one write of the name.
        await ours.allocate(None)
    store.wrong = [None, UnknownOutcome("lost")] * ATTEMPTS_MAX

    with refuses("conflict"):
        await ours.allocate(name)


async def test_a_bad_name_is_refused(store: Spoilt) -> None:
    """An invalid producer name is refused according to the rule for names of groups."""
    with refuses("invalid_group_name"):
        await registry(store).allocate("..")


async def test_names_idle_for_a_week_are_forgotten(store: Spoilt) -> None:
    """A producer name that was idle for a week is deleted, unless its producer writes."""
    clock = WallClock()
    ours = registry(store, clock)
    idle = await ours.allocate("idle")
    active = await ours.allocate("active")
    clock.seconds += WEEK_SECONDS - 1
    await ours.allocate("young")
    none_yet = await ours.forget_idle_names(lambda _: False)
    clock.seconds += 1

    dropped = await ours.forget_idle_names(lambda producer_id: producer_id == active.producer_id)

    assert (none_yet, dropped) == (0, 1)
    assert await stored(store, "idle") is None
    assert await stored(store, "young") is not None
    kept = await stored(store, "active")
    assert kept is not None
    assert (kept.used_us, kept.producer_epoch) == (clock.now_us(), 0)
    assert (await ours.allocate("idle")).producer_id not in (idle.producer_id, active.producer_id)


async def test_a_jump_of_the_clock_forgets_no_name(store: Spoilt) -> None:
    """No producer name is deleted because a clock is weeks ahead for a day, even if it is ahead at a broker's start."""
    clock = WallClock()
    named = await registry(store, clock).allocate("idle")
    clock.ahead_seconds = 3 * WEEK_SECONDS
    early = registry(store, clock)
    dropped = await early.forget_idle_names(lambda _: False)
    clock.ahead_seconds = 0
    running = registry(store, clock)
    for clock.ahead_seconds in (3 * WEEK_SECONDS, -WEEK_SECONDS, 3 * WEEK_SECONDS):
        clock.seconds += 3600 * 8
        dropped += await running.forget_idle_names(lambda _: False)
    clock.ahead_seconds = 0
    dropped += await early.forget_idle_names(lambda _: False)

    assert dropped == 0
    assert (await running.allocate("idle")).producer_id == named.producer_id


async def test_a_name_that_is_asked_for_meanwhile_is_kept(store: Spoilt) -> None:
    """A producer name that is requested after it was found idle is kept, because the deletion compares the record."""
    clock = WallClock()
    ours = registry(store, clock)
    await ours.allocate("idle")
    clock.seconds += WEEK_SECONDS
    page = await store.store.list(KEYS.producer_names)
    await registry(store, clock).allocate("idle")

    assert not await ours._drop(page.items[0])
    assert await stored(store, "idle") is not None


async def test_every_page_of_names_is_looked_at(store: Spoilt) -> None:
    """Idle producer names are searched on all pages."""
    clock = WallClock()
    ours = registry(store, clock)
    for number in range(7):
        await ours.allocate(f"n{number}")
    clock.seconds += WEEK_SECONDS
    listed = store.store.list
    store.list = lambda prefix, **about: listed(prefix, **{**about, "limit": 2})  # type: ignore[attr-defined]

    assert await ours.forget_idle_names(lambda _: False) == 7


async def test_a_name_is_kept_by_the_one_broker_that_its_producer_calls(store: Spoilt) -> None:
    """A producer name is kept if any broker sees its producer, even if other brokers do not."""
    clock = WallClock()
    leader, other = registry(store, clock), registry(store, clock)
    named = await leader.allocate("spark-1")
    dropped = 0
    for _ in range(10):
        clock.seconds += 24 * 3600
        dropped += await other.forget_idle_names(lambda _: False)
        dropped += await leader.forget_idle_names(lambda producer_id: producer_id == named.producer_id)

    assert dropped == 0
    assert await leader.allocate("spark-1") == AllocatedProducer(named.producer_id, ProducerEpoch(1))


async def test_a_name_that_is_used_is_not_written_each_time(store: Spoilt) -> None:
    """The record of a producer name in use is written once a day, although brokers check every hour."""
    clock = WallClock()
    ours = registry(store, clock)
    await ours.allocate("spark-1")
    [before] = (await store.store.list(KEYS.producer_names)).items
    for _ in range(23):
        clock.seconds += 3600
        await ours.forget_idle_names(lambda _: True)
    [after] = (await store.store.list(KEYS.producer_names)).items
    clock.seconds += 3600
    await ours.forget_idle_names(lambda _: True)
    noted = await stored(store, "spark-1")

    assert after == before
    assert noted is not None
    assert noted.used_us == clock.now_us()
