"""The coordination store for brokers on virtual time: the embedded store over an unreliable link.

The results of requests are those of the production store. Requests and answers are delayed or lost; a request may be
carried out after its sender has given up; watches lag and break; leases end early.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import (
    PAGE_KEYS_MAX,
    CoordinationError,
    CoordinationUnavailable,
    Lease,
    Page,
    UnknownOutcome,
    Watch,
    WatchBatch,
)
from fairlead_broker.registry.store_writes import Compare, Operation, TransactionResult
from virtual_time.life import Life
from virtual_time.loop import pass_time

CALL_SECONDS = 5.0
"""Timeout of a call to etcd in seconds."""


@dataclass(slots=True)
class StoreWeather:
    """The current faults of the store."""

    chance: random.Random
    cut: set[str] = field(default_factory=set)
    """Brokers that cannot reach the store."""
    away: bool = False
    slow_seconds: float = 0.0
    unknown: float = 0.0
    """Fraction of transactions with an unknown outcome."""
    breaking: float = 0.0
    """Fraction of watch events that break the watch."""
    unknown_outcomes: int = 0
    broken_watches: int = 0


class FarCoordination:
    """A broker's client of a remote store; implements `Coordination`."""

    def __init__(self, inner: EmbeddedCoordination, weather: StoreWeather, life: Life) -> None:
        self._inner = inner
        self._weather = weather
        self._life = life
        self.leases: list[Lease] = []
        """Granted leases in order; a fault may revoke the newest lease before it expires."""

    async def list(
        self,
        prefix: str,
        *,
        revision: Revision | None = None,
        after: str | None = None,
        limit: int = PAGE_KEYS_MAX,
    ) -> Page:
        """Read a page of keys."""
        await self._reach()
        page = await self._inner.list(prefix, revision=revision, after=after, limit=limit)
        await self._reach()
        return page

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        """Watch the keys of a prefix."""
        return FarWatch(self._inner.watch(prefix, from_revision), self)

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Write, possibly with an unknown outcome."""
        await self._reach()
        weather = self._weather
        if weather.chance.random() < weather.unknown:
            weather.unknown_outcomes += 1
            fate = weather.chance.random()
            if fate < 0.4:
                await self._inner.transact(compares, success, failure)
            elif fate < 0.8:
                late = self._late(weather.chance.random() * 10, compares, success, failure)
                # The task does not belong to this process, because a sent request outlives its sender.
                asyncio.get_running_loop().create_task(late, context=_no_process())
            await pass_time(weather.chance.random() * CALL_SECONDS)
            raise UnknownOutcome("the answer got lost")
        result = await self._inner.transact(compares, success, failure)
        try:
            await self._reach()
        except CoordinationUnavailable as error:
            raise UnknownOutcome(str(error)) from error
        return result

    async def grant_lease(self, ttl_seconds: int) -> Lease:
        """Grant a lease."""
        await self._reach()
        lease = await self._inner.grant_lease(ttl_seconds)
        self.leases.append(lease)
        await self._reach()
        return lease

    async def keep_alive(self, lease: Lease) -> None:
        """Renew a lease."""
        await self._reach()
        await self._inner.keep_alive(lease)
        await self._reach()

    async def revoke(self, lease: Lease) -> None:
        """Revoke a lease."""
        await self._reach()
        await self._inner.revoke(lease)
        await self._reach()

    async def compact(self, revision: Revision) -> None:
        """Compact the history."""
        await self._reach()
        await self._inner.compact(revision)

    async def close(self) -> None:
        """Close the client."""
        await self._inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    def is_cut(self) -> bool:
        """Return whether requests and answers are lost."""
        return self._life.dead or self._weather.away or self._life.name in self._weather.cut

    async def _reach(self) -> None:
        """Wait for the delay of a message in one direction, and raise `CoordinationUnavailable` if it is lost."""
        weather = self._weather
        delay = weather.chance.expovariate(1_000) + weather.chance.random() * weather.slow_seconds
        await pass_time(delay)
        if self.is_cut:
            await pass_time(CALL_SECONDS)
            raise CoordinationUnavailable("the store does not answer")

    async def _late(self, seconds: float, *transaction: Any) -> None:
        await pass_time(seconds)
        with suppress(CoordinationError):
            await self._inner.transact(*transaction)


class FarWatch:
    """A watch over the unreliable link of its client."""

    def __init__(self, inner: Watch, client: FarCoordination) -> None:
        self._inner = inner
        self._client = client
        self._held: WatchBatch | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchBatch:
        # The next event is kept until it is returned, so that a cancelled wait loses no event.
        if self._held is None:
            self._held = await self._inner.__anext__()
        weather = self._client._weather
        if weather.chance.random() < weather.breaking:
            weather.broken_watches += 1
            raise CoordinationUnavailable("the watch broke")
        await self._client._reach()
        batch, self._held = self._held, None
        return batch

    async def request_progress(self) -> None:
        """Request a progress event."""
        if not self._client.is_cut:
            await self._inner.request_progress()

    async def cancel(self) -> None:
        """Cancel the watch."""
        await self._inner.cancel()


def _no_process() -> contextvars.Context:
    return contextvars.Context()
