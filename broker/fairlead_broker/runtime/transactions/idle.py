"""Periodic deletion of the records of producers that have not been used for a long time (rule 7.1.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fairlead_broker.coordination.protocol import CoordinationClosed, CoordinationError
from fairlead_broker.registry.records import RecordUnreadable
from fairlead_broker.runtime.transactions.transactions import Transactions
from fairlead_broker.telemetry import Log

INTERVAL_SECONDS: Final = 3600.0


class IdleTransactions:
    """Task that deletes the records of idle producers until it is cancelled."""

    __slots__ = ("_expiration_us", "_log", "_transactions")

    def __init__(self, transactions: Transactions, expiration_us: Callable[[], int], log: Log) -> None:
        self._transactions = transactions
        self._expiration_us = expiration_us
        self._log = log

    async def run(self) -> None:
        """Delete the records of idle producers at every interval, until cancelled."""
        while True:
            # No event announces an idle producer, so the task checks periodically.
            await asyncio.sleep(INTERVAL_SECONDS)  # noqa: TID251
            try:
                await self._transactions.forget_idle(self._expiration_us())
            except CoordinationClosed:
                raise
            except (CoordinationError, RecordUnreadable) as error:
                self._log.warning("idle transactions not deleted", reason=str(error))
