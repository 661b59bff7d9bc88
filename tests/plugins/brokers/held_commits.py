"""The first commit of a transaction, held back by the brokers of this process, as on a slow network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fairlead_api.identifiers import ProducerId
from fairlead_broker.registry.transaction_records import Outcome
from fairlead_broker.runtime.transactions.transactions import Transactions
from fairlead_broker.transactions.decisions import Decide, Decided

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
        self._late: asyncio.Future[Decided] | None = None
        for name in ("decide", "commit_with"):
            monkeypatch.setattr(Transactions, name, self._holding(getattr(Transactions, name)))

    def _holding(self, decide: Callable[..., Awaitable[Decided]]) -> Callable[..., Awaitable[Decided]]:
        async def held(
            transactions: Transactions, producer_id: ProducerId, request: Decide, *others: Any
        ) -> Decided:
            if request.outcome is not Outcome.COMMIT or self.arrived.is_set():
                return await decide(transactions, producer_id, request, *others)
            decided = await decide(transactions, producer_id, request, *others) if self._is_written else None
            self.arrived.set()

            async def late() -> Decided:
                await self._released.wait()
                return decided or await decide(transactions, producer_id, request, *others)

            self._late = asyncio.ensure_future(late())
            return await asyncio.shield(self._late)

        return held

    async def release(self) -> None:
        """End the hold, and return when the commit is answered or refused."""
        self._released.set()
        if self._late is not None:
            await asyncio.wait([self._late])
            self._late.exception()
