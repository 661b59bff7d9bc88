from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import Revision, TimestampUs
from fairlead_broker.controller.topics import TOMBSTONE_SECONDS
from fairlead_broker.controlling import housekeeping as module
from fairlead_broker.controlling.housekeeping import (
    EXPIRED_TOKEN_SECONDS,
    HISTORY_SECONDS,
    HISTORY_SECONDS_MIN,
    INTERVAL_SECONDS,
    Housekeeping,
)
from fairlead_broker.coordination.protocol import Compacted, CoordinationClosed, CoordinationUnavailable
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.security_records import TokenRecord
from fairlead_broker.registry.store_writes import Put


@pytest.fixture
def housekeeping(life: Any, clock: Any) -> Housekeeping:
    """Return the controller's periodic tasks in the test."""
    return Housekeeping(life.coordination, life.mirror, lambda: life.controllership.term, clock)


async def test_history_is_kept_for_ten_minutes(life: Any, clock: Any, housekeeping: Housekeeping) -> None:
    """The history of the store is kept for ten minutes, and older revisions cannot be listed."""
    revisions = []
    for n in range(13):
        revisions.append((await life.coordination.transact((), (Put("/k", str(n).encode()),))).revision)
        await housekeeping.tick()
        clock.seconds += INTERVAL_SECONDS
    readable = []
    for revision in revisions:
        try:
            await life.coordination.list("/k", revision=Revision(revision))
            readable.append(revision)
        except Compacted:
            pass

    assert HISTORY_SECONDS == 10 * INTERVAL_SECONDS
    assert readable == revisions[2:]


async def test_a_long_history_is_kept_for_a_minute(
    life: Any, clock: Any, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a history with more revisions than allowed, only the revisions of the last minute are kept."""
    monkeypatch.setattr(module, "HISTORY_REVISIONS", 3)
    kept = []
    for n in range(8):
        written = await life.coordination.transact((), (Put("/k", str(n).encode()),))
        await housekeeping.tick()
        kept.append((clock.seconds, written.revision))
        clock.seconds += HISTORY_SECONDS_MIN / 2
    with pytest.raises(Compacted):
        await life.coordination.list("/k", revision=Revision(kept[0][1]))
    newest = clock.seconds - HISTORY_SECONDS_MIN
    for seen, revision in kept:
        if seen > newest:
            await life.coordination.list("/k", revision=Revision(revision))


async def test_nothing_is_compacted_before_there_is_enough_history(
    life: Any, clock: Any, housekeeping: Housekeeping
) -> None:
    """A new controller compacts nothing until it knows revisions that are old enough."""
    await housekeeping.tick()
    clock.seconds += HISTORY_SECONDS - 1
    await housekeeping.tick()

    assert (await life.coordination.list("/", revision=Revision(1))).items == ()


async def test_tombstones_are_forgotten_when_their_time_is_over(
    life: Any, clock: Any, housekeeping: Housekeeping
) -> None:
    """The tombstone of a deleted topic is deleted only after its retention time has passed."""
    record, _ = await life.admin.create(CreateTopicRequest(name="t"))
    await life.admin.delete("t")
    clock.seconds += TOMBSTONE_SECONDS - 1
    await housekeeping.tick()
    before = list(life.mirror.metadata.deleted_topics)
    clock.seconds += 1
    await housekeeping.tick()

    assert before == [record.topic_id]
    assert life.mirror.metadata.deleted_topics == {}


async def test_a_store_that_is_away_does_not_end_it(life: Any, housekeeping: Housekeeping) -> None:
    """The housekeeping retries while the store is unavailable, and ends when the client is closed."""
    tried = asyncio.Event()

    async def away(_: Any) -> Any:
        tried.set()
        raise CoordinationUnavailable("away")

    async def closed(_: Any) -> Any:
        raise CoordinationClosed("closed")

    life.coordination.faults["list"] = [away, closed]
    running = asyncio.create_task(housekeeping.run())
    async with asyncio.timeout(10):
        await tried.wait()
        await life.coordination.transact((), ())
    still = not running.done()
    running.cancel()
    await asyncio.wait([running])

    assert still
    with pytest.raises(CoordinationClosed):
        await housekeeping.run()


async def test_tokens_are_removed_long_after_their_expiry(
    life: Any, clock: Any, housekeeping: Housekeeping
) -> None:
    """An expired token remains in the list for 30 days; a token without an expiry is never removed (rule A13)."""
    keys, now_us = life.mirror.metadata.keys, clock.now_us()
    for number in range(70):
        record = TokenRecord(
            principal="user:ann",
            secret_sha256="ab",
            created_us=TimestampUs(now_us),
            created_by="user:admin",
            expires_us=TimestampUs(now_us) if number else None,
        )
        await life.coordination.transact((), (Put(keys.token(f"t{number}"), encode(record)),))
    clock.seconds += EXPIRED_TOKEN_SECONDS - 1
    await housekeeping.tick()
    before = len(life.mirror.metadata.tokens)
    clock.seconds += 2
    await housekeeping.tick()

    assert (before, list(life.mirror.metadata.tokens)) == (70, ["t0"])
