"""A store in which transactions that change consumer groups fail in a given way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.store_writes import Compare, Operation, TransactionResult

Trouble = Literal["away", "lost before", "lost after"] | asyncio.Event
"""Fault of a transaction, or an event that delays the transaction."""


class TroubledStore:
    """A real store in which transactions that change groups may fail."""

    def __init__(self, store: EmbeddedCoordination, faults: list[Trouble]) -> None:
        self._store = store
        self.faults = faults
        """Faults of the next transactions that change groups, in order."""

    def connect(self) -> TroubledStore:
        """Return another client with the same faults."""
        return TroubledStore(self._store.connect(), self.faults)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Run a transaction, or apply the next fault."""
        if not self.faults or not any("/groups/" in each.key for each in compares):
            return await self._store.transact(compares, success, failure)
        match self.faults.pop(0):
            case "away":
                raise CoordinationUnavailable("the store is unavailable")
            case "lost before":
                raise UnknownOutcome("no answer, and nothing was done")
            case asyncio.Event() as held_back:
                await held_back.wait()
                return await self._store.transact(compares, success, failure)
            case _:
                await self._store.transact(compares, success, failure)
                raise UnknownOutcome("no answer, and all was done")
