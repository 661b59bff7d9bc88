"""Measurement of the duration of every call to the store.

The runtime wraps the broker's client in `MeasuredCoordination`, which has the interface `protocol.Coordination`.
The durations reveal a slow store before a broker loses its lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

from fairlead_api.identifiers import Revision
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.protocol import PAGE_KEYS_MAX, Coordination, Lease, Page, Watch
from fairlead_broker.registry.store_writes import Compare, Operation, TransactionResult

Answer = TypeVar("Answer")


class MeasuredCoordination:
    """A coordination client whose calls are measured, including failed calls."""

    def __init__(self, inner: Coordination, clock: Clock, observe: Callable[[str, float], None]) -> None:
        """Wrap a client. `observe` is called with the name of each call and its duration in seconds."""
        self._inner = inner
        self._clock = clock
        self._observe = observe

    async def list(
        self,
        prefix: str,
        *,
        revision: Revision | None = None,
        after: str | None = None,
        limit: int = PAGE_KEYS_MAX,
    ) -> Page:
        """Read the keys under a prefix (see `Coordination.list`)."""
        call = self._inner.list(prefix, revision=revision, after=after, limit=limit)
        return await self._timed("list", call)

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        """Watch the keys under a prefix (see `Coordination.watch`)."""
        return self._inner.watch(prefix, from_revision)

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Apply one branch of a transaction atomically (see `Coordination.transact`)."""
        return await self._timed("transact", self._inner.transact(compares, success, failure))

    async def grant_lease(self, ttl_seconds: int) -> Lease:
        """Grant a lease."""
        return await self._timed("grant_lease", self._inner.grant_lease(ttl_seconds))

    async def keep_alive(self, lease: Lease) -> None:
        """Restart the lease's time to live."""
        await self._timed("keep_alive", self._inner.keep_alive(lease))

    async def revoke(self, lease: Lease) -> None:
        """End a lease and remove its keys."""
        await self._timed("revoke", self._inner.revoke(lease))

    async def compact(self, revision: Revision) -> None:
        """Drop the history before a revision."""
        await self._timed("compact", self._inner.compact(revision))

    async def close(self) -> None:
        """Close the client."""
        await self._inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _timed(self, name: str, call: Awaitable[Answer]) -> Answer:
        began = self._clock.monotonic()
        try:
            return await call
        finally:
            self._observe(name, self._clock.monotonic() - began)
