"""The first commit of a transaction, held back by the brokers of this process, as on a slow network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from fairlead_broker.registry.transaction_records import Outcome
from fairlead_broker.runtime.transactions.transactions import Transactions

if TYPE_CHECKING:
    import pytest


class HeldCommit:
    """Holds back the first commit until `release`, even if the client has disconnected.

    `is_written`: whether the commit is written before the hold, or after it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_written: bool) -> None:
        self.arrived = asyncio.Event()
        self._released = asyncio.Event()
        self._is_written = is_written
        self._late: asyncio.Future[Any] | None = None
        for name in ("decide", "commit_with"):
            monkeypatch.setattr(Transactions, name, self._holding(getattr(Transactions, name)))

    def _holding(self, decide: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def held(transactions: Transactions, *given: Any) -> Any:
            if not _is_commit(given) or self.arrived.is_set():
                return await decide(transactions, *given)
            decided = await decide(transactions, *given) if self._is_written else None
            self.arrived.set()

            async def late() -> Any:
                await self._released.wait()
                return decided or await decide(transactions, *given)

            self._late = asyncio.ensure_future(late())
            return await asyncio.shield(self._late)

        return held

    async def release(self) -> None:
        """End the hold, and return when the commit is answered or refused."""
        self._released.set()
        if self._late is not None:
            await asyncio.wait([self._late])
            self._late.exception()


def _is_commit(given: tuple[Any, ...]) -> bool:
    """Return whether the arguments of `decide` or `commit_with` commit a transaction."""
    requests = given[0].values() if isinstance(given[0], Mapping) else given[1:2]
    return all(request.outcome is Outcome.COMMIT for request in requests)
