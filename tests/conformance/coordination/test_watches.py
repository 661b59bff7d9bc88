from __future__ import annotations

import asyncio

import pytest

from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.protocol import (
    Compacted,
    Coordination,
    CoordinationClosed,
    DeleteEvent,
    PutEvent,
    Watch,
    WatchBatch,
)
from fairlead_broker.registry.store_writes import (
    Delete,
    KeyValue,
    Put,
)


async def take(watch: Watch, count: int) -> list[WatchBatch]:
    """Wait for `count` batches."""
    async with asyncio.timeout(10):
        return [await anext(watch) for _ in range(count)]


def changes(batch: WatchBatch) -> list[tuple[str, bytes | None]]:
    """Return a batch as keys and values, None for a deletion."""
    return [
        (event.item.key, event.item.value) if isinstance(event, PutEvent) else (event.key, None)
        for event in batch.events
    ]


async def test_a_watch_sees_what_another_client_writes(client: Coordination, other: Coordination) -> None:
    """A watch delivers puts and deletions by another client, each with its revision."""
    watch = client.watch("/k/", Revision(1))
    first = await other.transact((), (Put("/k/a", b"1"),))
    second = await other.transact((), (Put("/k/a", b"2"),))
    third = await other.transact((), (Delete("/k/a"),))

    assert await take(watch, 3) == [
        WatchBatch(first.revision, (PutEvent(KeyValue("/k/a", b"1", first.revision, first.revision)),)),
        WatchBatch(second.revision, (PutEvent(KeyValue("/k/a", b"2", first.revision, second.revision)),)),
        WatchBatch(third.revision, (DeleteEvent("/k/a"),)),
    ]


async def test_a_watch_that_waits_is_woken(client: Coordination, other: Coordination) -> None:
    """A watch that already waits delivers a change that is made later."""
    watch = client.watch("/k/", Revision(1))
    waiting = asyncio.create_task(take(watch, 1))
    await other.transact((), (Put("/beside", b""),))
    await other.transact((), (Put("/k/a", b"1"),))

    assert [changes(batch) for batch in await waiting] == [[("/k/a", b"1")]]


async def test_all_events_of_a_revision_come_together(client: Coordination) -> None:
    """A watch delivers a transaction as one batch, without keys outside the prefix."""
    watch = client.watch("/k/", Revision(1))
    await client.transact((), (Put("/k/gone", b""),))
    await client.transact(
        (), [Put(f"/k/{n:03}", b"") for n in range(126)] + [Delete("/k/gone"), Put("/else", b"")]
    )
    _, batch = await take(watch, 2)

    assert sorted(key for key, _ in changes(batch)) == [f"/k/{n:03}" for n in range(126)] + ["/k/gone"]


async def test_large_revisions_are_not_torn_when_a_watch_catches_up(client: Coordination) -> None:
    """A watch joins the fragments of an answer (60 MiB of history, 1 MiB per revision)."""
    value = bytes(512 * 1024)
    start = await client.transact((), (Put("/before", b""),))
    for n in range(30):
        await client.transact((), (Put("/k/a", value), Put("/k/b", value), Put(f"/k/{n}", b"")))
    batches = await take(client.watch("/k/", Revision(start.revision + 1)), 30)

    assert [batch.revision for batch in batches] == list(range(start.revision + 1, start.revision + 31))
    assert [[key for key, _ in changes(batch)] for batch in batches] == [
        ["/k/a", "/k/b", f"/k/{n}"] for n in range(30)
    ]


async def test_a_watch_begins_in_the_past(client: Coordination) -> None:
    """A watch from an earlier revision first delivers the history from that revision on, then new events."""
    writes = [await client.transact((), (Put("/k", str(n).encode()),)) for n in range(5)]
    watch = client.watch("/k", writes[2].revision)
    old = await take(watch, 3)
    await client.transact((), (Put("/k", b"new"),))
    new = await take(watch, 1)

    assert [changes(batch) for batch in old + new] == [
        [("/k", value)] for value in (b"2", b"3", b"4", b"new")
    ]


async def test_a_watch_may_begin_in_the_future(client: Coordination) -> None:
    """A watch from a future revision delivers no change below it, not even one written after the watch was created."""
    written = await client.transact((), (Put("/k", b"0"),))
    watch = client.watch("/k", Revision(written.revision + 3))
    for value in (b"1", b"2", b"3"):
        await client.transact((), (Put("/k", value),))
    batches = await take(watch, 1)

    assert [changes(batch) for batch in batches] == [[("/k", b"3")]]


async def test_list_then_watch_misses_nothing_and_repeats_nothing(
    client: Coordination, other: Coordination
) -> None:
    """A list and a watch from the next revision return the whole state, including writes between the two calls."""

    async def write() -> None:
        for n in range(200):
            await other.transact((), (Put(f"/k/{n % 7}", str(n).encode()), Delete(f"/k/{(n + 3) % 7}")))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        await other.transact((), (Put("/k/begin", b""),))
        page = await client.list("/k/")
        state = {item.key: item.value for item in page.items}
        watch, revision = client.watch("/k/", Revision(page.revision + 1)), page.revision
        while state.get("/k/3") != b"199":
            [batch] = await take(watch, 1)
            assert batch.revision > revision, "revisions only grow"
            revision = batch.revision
            for key, value in changes(batch):
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value

    assert state == {item.key: item.value for item in (await client.list("/k/")).items}


async def test_compaction_cancels_a_watch_of_what_it_removed(client: Coordination) -> None:
    """A watch below the compacted revision reports the first kept revision instead of delivering history with a gap."""
    first = await client.transact((), (Put("/k", b"1"),))
    await client.transact((), (Put("/k", b"2"),))
    third = await client.transact((), (Put("/k", b"3"),))
    await client.compact(third.revision)
    with pytest.raises(Compacted) as cancelled:
        await take(client.watch("/k", first.revision), 1)

    assert cancelled.value.revision == third.revision


async def test_after_a_cancelled_watch_list_and_watch_continue(client: Coordination) -> None:
    """A list and a watch from the next revision return the whole state again after a cancelled watch."""
    first = await client.transact((), (Put("/k/a", b"1"), Put("/k/b", b"1")))
    last = await client.transact((), (Delete("/k/b"), Put("/k/c", b"2")))
    await client.compact(last.revision)
    with pytest.raises(Compacted):
        await take(client.watch("/k/", first.revision), 1)
    page = await client.list("/k/")
    watch = client.watch("/k/", Revision(page.revision + 1))
    await client.transact((), (Put("/k/d", b"3"),))
    batches = await take(watch, 1)

    assert [item.key for item in page.items] == ["/k/a", "/k/c"]
    assert [changes(batch) for batch in batches] == [[("/k/d", b"3")]]


async def test_the_compacted_revision_itself_can_be_watched(client: Coordination) -> None:
    """A watch from the compacted revision delivers every event of that revision, including deletions."""
    await client.transact((), (Put("/k/a", b"1"), Put("/k/b", b"1")))
    second = await client.transact((), (Put("/k/a", b"2"), Delete("/k/b")))
    await client.compact(second.revision)
    batches = await take(client.watch("/k/", second.revision), 1)

    assert [changes(batch) for batch in batches] == [[("/k/a", b"2"), ("/k/b", None)]]


async def test_compaction_keeps_a_watch_that_is_not_behind(client: Coordination, other: Coordination) -> None:
    """A watch that keeps up, or waits for a quiet prefix, is not cancelled by a compaction."""
    watch = client.watch("/quiet/", Revision(1))
    await watch.request_progress()
    await take(watch, 1)
    waiting = asyncio.create_task(take(watch, 1))
    written = [await other.transact((), (Put("/busy", b""),)) for _ in range(5)]
    await other.compact(written[-1].revision)
    await other.transact((), (Put("/quiet/k", b"1"),))

    assert [changes(batch) for batch in await waiting] == [[("/quiet/k", b"1")]]


async def test_progress_of_a_quiet_watch_follows_every_revision(
    client: Coordination, other: Coordination
) -> None:
    """A progress report of a watch follows every event up to its revision, even when other keys changed."""
    watch = client.watch("/k/", Revision(1))
    event = await other.transact((), (Put("/k/a", b""),))
    elsewhere = await other.transact((), (Put("/else", b""),))
    await watch.request_progress()
    first, second = await take(watch, 2)

    assert (first.revision, len(first.events)) == (event.revision, 1)
    assert second == WatchBatch(elsewhere.revision, ())


async def test_progress_can_be_asked_of_a_watch_that_waits(client: Coordination) -> None:
    """A request for progress wakes a waiting watch."""
    written = await client.transact((), (Put("/else", b""),))
    watch = client.watch("/k/", Revision(1))
    waiting = asyncio.create_task(take(watch, 1))
    await client.list("/")
    await watch.request_progress()

    assert await waiting == [WatchBatch(written.revision, ())]


async def test_a_cancelled_wait_loses_no_event(client: Coordination) -> None:
    """A watch whose wait is cancelled delivers the next batch to the next wait."""
    watch = client.watch("/k", Revision(1))
    for n in range(20):
        waiting = asyncio.create_task(take(watch, 1))
        await client.list("/")
        writing = asyncio.create_task(client.transact((), (Put("/k", str(n).encode()),)))
        await client.list("/") if n % 2 else None
        waiting.cancel()
        await asyncio.wait([waiting])
        await writing
        if waiting.cancelled():
            [batch] = await take(watch, 1)
        else:
            [batch] = waiting.result()

        assert changes(batch) == [("/k", str(n).encode())]


async def test_cancel_ends_the_iteration(client: Coordination) -> None:
    """A cancelled watch ends its iteration."""
    watch = client.watch("/k", Revision(1))
    waiting = asyncio.create_task(take(watch, 1))
    await client.list("/")
    await watch.cancel()
    with pytest.raises(StopAsyncIteration):
        await waiting

    assert [batch async for batch in watch] == []


async def test_two_watches_do_not_disturb_each_other(client: Coordination, other: Coordination) -> None:
    """A watch has its own position, independent of other watches and their ends."""
    first = await client.transact((), (Put("/k", b"1"),))
    ahead, behind = client.watch("/k", Revision(first.revision + 1)), other.watch("/k", first.revision)
    await client.transact((), (Put("/k", b"2"),))
    seen = await take(ahead, 1)
    await ahead.cancel()
    batches = await take(behind, 2)

    assert [changes(batch) for batch in seen] == [[("/k", b"2")]]
    assert [changes(batch) for batch in batches] == [[("/k", b"1")], [("/k", b"2")]]


async def test_closing_a_client_ends_its_watches_and_calls_only(
    client: Coordination, other: Coordination
) -> None:
    """A closed client refuses every request, and another client continues."""
    watch = other.watch("/k", Revision(1))
    waiting = asyncio.create_task(take(watch, 1))
    await client.list("/")
    await other.close()
    with pytest.raises(CoordinationClosed):
        await waiting
    with pytest.raises(CoordinationClosed):
        await anext(watch)
    with pytest.raises(CoordinationClosed):
        await other.list("/")
    with pytest.raises(CoordinationClosed):
        await other.transact((), ())
    with pytest.raises(CoordinationClosed):
        other.watch("/", Revision(1))
    await other.close()

    assert (await client.transact((), (Put("/k", b""),))).succeeded
