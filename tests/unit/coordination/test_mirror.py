from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead_api.identifiers import BrokerId, Revision, TimestampUs, TopicId
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.mirror import Mirror, MirrorUpdate
from fairlead_broker.coordination.protocol import (
    Compacted,
    Coordination,
    CoordinationClosed,
    CoordinationUnavailable,
)
from fairlead_broker.registry.metadata import BrokerChange, ConfigChange, TopicChange
from fairlead_broker.registry.records import ConfigRecord, RecordUnreadable, TopicRecord, TopicState, encode
from fairlead_broker.registry.store_writes import Delete, Put
from refusals import raises

SILENCE_SECONDS = 0.3
"""Seconds of silence after which a mirror asks its watch for progress: longer than a busy machine may stall."""


def topic(number: int) -> Put:
    """Return a put of topic t<number>, whose id has the same number."""
    record = TopicRecord(
        topic_id=TopicId(f"00000000-0000-4000-8000-{number:012}"),
        state=TopicState.READY,
        partitions=1,
        replication_factor=1,
        created_us=TimestampUs(number),
    )
    return Put(f"/fairlead/test/meta/topics/t{number}", encode(record))


@asynccontextmanager
async def running(mirror: Mirror) -> AsyncIterator[None]:
    """Run a loaded mirror."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(mirror.run())
        yield
        task.cancel()


def names(mirror: Mirror) -> set[str]:
    """Return the names of all mirrored topics."""
    return set(mirror.metadata.topics)


async def test_it_shows_what_was_there_and_what_comes(store: EmbeddedCoordination, kit: Any) -> None:
    """A mirror loads all keys at one revision, and applies every change from the next revision on."""
    await store.transact((), [topic(n) for n in range(3)])
    mirror = Mirror(store, kit.keys)
    await mirror.load()
    loaded = names(mirror)
    async with running(mirror):
        result = await store.transact((), (topic(7), Delete("/fairlead/test/meta/topics/t0")))
        await mirror.wait_for(result.revision)

    assert loaded == {"t0", "t1", "t2"}
    assert names(mirror) == {"t1", "t2", "t7"}
    assert mirror.metadata.revision == mirror.metadata.metadata_revision == result.revision


async def test_a_listener_sees_all_of_a_revision_applied(store: EmbeddedCoordination, kit: Any) -> None:
    """A listener of the mirror is called after all changes in a revision have been applied."""
    mirror = Mirror(store, kit.keys)
    await mirror.load()
    seen: list[tuple[int, int, set[str]]] = []
    mirror.subscribe(lambda update: seen.append((update.revision, len(update.changes), names(mirror))))
    async with running(mirror):
        first = await store.transact((), [topic(n) for n in range(50)])
        second = await store.transact((), [Delete(f"/fairlead/test/meta/topics/t{n}") for n in range(40)])
        await mirror.wait_for(second.revision)

    assert seen == [
        (first.revision, 50, {f"t{n}" for n in range(50)}),
        (second.revision, 40, {f"t{n}" for n in range(40, 50)}),
    ]


async def test_a_listener_can_end_listening(store: EmbeddedCoordination, kit: Any) -> None:
    """A listener that was removed is not called, and other listeners are."""
    mirror = Mirror(store, kit.keys)
    heard: list[MirrorUpdate] = []
    stays: list[MirrorUpdate] = []
    end = mirror.subscribe(heard.append)
    mirror.subscribe(stays.append)
    await store.transact((), (topic(1),))
    await mirror.load()
    end()
    async with running(mirror):
        result = await store.transact((), (topic(2),))
        await mirror.wait_for(result.revision)

    assert [len(heard), len(stays)] == [1, 2]


async def test_revisions_of_other_keys_can_be_waited_for(store: EmbeddedCoordination, kit: Any) -> None:
    """A caller can wait for a revision that changed only keys outside the mirror, and no listener is called."""
    mirror = Mirror(store, kit.keys)
    await mirror.load()
    heard: list[MirrorUpdate] = []
    mirror.subscribe(heard.append)
    async with running(mirror):
        result = await store.transact((), (Put("/fairlead/test/groups/g", b""),))
        async with asyncio.timeout(10):
            await mirror.wait_for(result.revision)
            await mirror.wait_for(result.revision - 1)

    assert mirror.metadata.revision == result.revision
    assert mirror.metadata.metadata_revision < result.revision
    assert heard == []


async def test_long_lists_are_loaded_at_one_revision(store: EmbeddedCoordination, kit: Any) -> None:
    """A long list is loaded at one revision, and changes between its pages are delivered by the watch."""
    for start in range(0, 1200, 120):
        await store.transact((), [topic(n) for n in range(start, start + 120)])

    async def change_between(call: Any) -> Any:
        page = await call()
        await store.transact((), (Delete("/fairlead/test/meta/topics/t999"), topic(5000)))
        return page

    unreliable = kit.unreliable(store)
    unreliable.faults["list"] = [change_between]
    mirror = Mirror(unreliable, kit.keys)
    await mirror.load()
    loaded = names(mirror)
    async with running(mirror):
        await mirror.wait_for(mirror.metadata.revision + 1)

    assert loaded == {f"t{n}" for n in range(1200)}
    assert names(mirror) == loaded - {"t999"} | {"t5000"}


class Watches:
    """A client whose watches a test can break."""

    def __init__(self, inner: Coordination) -> None:
        """Start with working watches."""
        self.inner = inner
        self.opened: list[Broken] = []

    def watch(self, prefix: str, from_revision: Revision) -> Broken:
        """Return a watch that can be broken."""
        self.opened.append(Broken(self.inner.watch(prefix, from_revision)))
        return self.opened[-1]

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the real client."""
        return getattr(self.inner, name)


class Broken:
    """A real watch that fails or stays silent when the test requires it."""

    def __init__(self, inner: Any) -> None:
        """Start as a working watch."""
        self.inner = inner
        self.error: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.silent = False

    async def __anext__(self) -> Any:
        """Return the next batch of events, or fail."""
        if self.silent:
            await self.error
        batch = asyncio.ensure_future(anext(self.inner))
        try:
            await asyncio.wait([batch, self.error], return_when=asyncio.FIRST_COMPLETED)
            return self.error.result() if self.error.done() else batch.result()
        finally:
            batch.cancel()
            await asyncio.wait([batch])

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the real watch."""
        return getattr(self.inner, name)


@pytest.mark.parametrize("error", [CoordinationUnavailable("broken"), Compacted(Revision(99))])
async def test_a_watch_that_ends_is_replaced_without_a_gap(
    store: EmbeddedCoordination, kit: Any, error: Exception
) -> None:
    """A watch that ends is replaced by a new list and watch, and each missed change is reported once."""
    watches = Watches(store)
    await store.transact((), [topic(n) for n in range(4)])
    mirror = Mirror(watches, kit.keys)
    await mirror.load()
    heard: list[MirrorUpdate] = []
    mirror.subscribe(heard.append)
    async with running(mirror):
        first = await store.transact((), (topic(4),))
        await mirror.wait_for(first.revision)
        watches.opened[0].error.set_exception(error)
        missed = await store.transact((), (topic(5), Delete("/fairlead/test/meta/topics/t0")))
        async with asyncio.timeout(10):
            await mirror.wait_for(missed.revision)
        last = await store.transact((), (topic(6),))
        async with asyncio.timeout(10):
            await mirror.wait_for(last.revision)
    told = {
        change.name for update in heard[1:] for change in update.changes if isinstance(change, TopicChange)
    }

    assert names(mirror) == {f"t{n}" for n in range(1, 7)}
    assert told == {"t0", "t5", "t6"}
    assert len(watches.opened) == 2


async def test_a_key_that_was_changed_back_is_reported(store: EmbeddedCoordination, kit: Any) -> None:
    """A key that was changed back is reported, because its mod revision has changed."""
    await store.transact((), (topic(1), topic(2)))
    mirror = Mirror(store, kit.keys)
    await mirror.load()
    heard: list[MirrorUpdate] = []
    mirror.subscribe(heard.append)
    await store.transact((), (Delete("/fairlead/test/meta/topics/t1"),))
    again = await store.transact((), (topic(1),))
    await mirror.load()
    await mirror.load()

    [update] = heard
    [change] = update.changes
    assert isinstance(change, TopicChange)
    assert change.after is not None
    assert (change.name, change.after.create_revision) == ("t1", again.revision)


async def test_a_watch_that_says_nothing_is_given_up(store: EmbeddedCoordination, kit: Any) -> None:
    """A watch that does not answer a progress request is replaced."""
    watches = Watches(store)
    mirror = Mirror(watches, kit.keys, silence_seconds=0.05)
    await mirror.load()
    heard = asyncio.Event()
    mirror.subscribe(lambda _: heard.set())
    async with running(mirror):
        await mirror.wait_for((await store.transact((), (Put("/else", b""),))).revision)
        watches.opened[0].silent = True
        await store.transact((), (topic(1),))
        async with asyncio.timeout(10):
            await heard.wait()

    assert names(mirror) == {"t1"}


async def test_a_quiet_watch_that_answers_is_kept(store: EmbeddedCoordination, kit: Any) -> None:
    """A quiet watch that answers progress requests is kept."""
    watches = Watches(store)
    mirror = Mirror(watches, kit.keys, silence_seconds=SILENCE_SECONDS)
    await mirror.load()
    async with running(mirror):
        before = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < before + 4 * SILENCE_SECONDS:
            await store.list("/")
    alive = len(watches.opened)

    assert alive == 1


async def test_an_old_answer_of_a_lagging_member_is_passed_over(
    store: EmbeddedCoordination, kit: Any
) -> None:
    """A list at an earlier revision, which a lagging etcd member may return, does not change the mirror."""
    await store.transact((), (topic(1),))
    old = await store.list(kit.keys.meta)
    last = await store.transact((), (topic(2),))
    unreliable = kit.unreliable(store)
    mirror = Mirror(unreliable, kit.keys)
    await mirror.load()

    async def lag(_: Any) -> Any:
        return old

    unreliable.faults["list"] = [lag]
    await mirror.load()

    assert mirror.metadata.revision == last.revision
    assert names(mirror) == {"t1", "t2"}


async def test_listing_is_tried_until_the_store_is_back(store: EmbeddedCoordination, kit: Any) -> None:
    """A list is retried until the store is available, and the mirror keeps its content."""
    watches = Watches(store)
    unreliable = kit.unreliable(watches)
    mirror = Mirror(unreliable, kit.keys)
    await mirror.load()

    async def away(_: Any) -> Any:
        raise CoordinationUnavailable("away")

    unreliable.faults["list"] = [away, away]
    async with running(mirror):
        await mirror.wait_for((await store.transact((), (topic(1),))).revision)
        watches.opened[0].error.set_exception(CoordinationUnavailable("away"))
        result = await store.transact((), (topic(2),))
        async with asyncio.timeout(10):
            await mirror.wait_for(result.revision)

    assert names(mirror) == {"t1", "t2"}


async def test_the_end_of_the_mirror_ends_all_waits(store: EmbeddedCoordination, kit: Any) -> None:
    """Closing the client ends the mirror and all waits for a revision."""
    client = store.connect()
    mirror = Mirror(client, kit.keys)
    await mirror.load()
    waiting = asyncio.create_task(mirror.wait_for(10_000))
    following = asyncio.create_task(mirror.run())
    await store.list("/")
    await client.close()
    with pytest.raises(CoordinationClosed):
        await following
    with raises(CoordinationUnavailable, 10000):
        await waiting


async def test_a_record_that_cannot_be_read_ends_the_mirror(store: EmbeddedCoordination, kit: Any) -> None:
    """A record that cannot be read ends the mirror, because the broker would act on incomplete metadata."""
    await store.transact((), (Put(kit.keys.cluster_config, b'{"v":2}'),))
    mirror = Mirror(store, kit.keys)
    with pytest.raises(RecordUnreadable):
        await mirror.load()


async def test_every_kind_of_change_is_reported(store: EmbeddedCoordination, kit: Any) -> None:
    """Registrations and configuration are reported like topics."""
    mirror = Mirror(store, kit.keys)
    await mirror.load()
    heard: list[MirrorUpdate] = []
    mirror.subscribe(heard.append)
    async with running(mirror):
        result = await store.transact(
            (),
            (
                Put(kit.keys.broker(BrokerId(1)), encode(kit.registration())),
                Put(kit.keys.cluster_config, encode(ConfigRecord(values={}))),
            ),
        )
        await mirror.wait_for(result.revision)

    [update] = heard
    assert [type(change) for change in update.changes] == [BrokerChange, ConfigChange]
