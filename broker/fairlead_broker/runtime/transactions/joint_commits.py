"""Commits of transactions of several producers in one write of the store: all of them, or none (rule 7.1.7).

`Transactions` builds the change to each producer's record. If one change is refused, all changes are refused, before
anything is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, TypeVar

from fairlead_api.identifiers import ProducerId
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.protocol import CoordinationError, TransactionTooLarge, UnknownOutcome
from fairlead_broker.coordination.transaction_store import Replacement, Standing, TransactionStore
from fairlead_broker.registry.records import RecordUnreadable
from fairlead_broker.runtime.transactions.decision_writes import (
    RETRY_SECONDS,
    SECONDS_MAX,
    Change,
    DecisionWrites,
)
from fairlead_broker.runtime.transactions.meters import TransactionMeters

A = TypeVar("A")
UNDER_WAY_MAX: Final = 1
"""Maximum number of concurrent writes, each with up to a hundred records."""


class JointCommits:
    """Writes of the records of several producers, one write after another."""

    __slots__ = ("_clock", "_meters", "_store", "_turn", "_writes")

    def __init__(
        self, store: TransactionStore, writes: DecisionWrites, clock: Clock, meters: TransactionMeters
    ) -> None:
        """`writes` keeps the written records in memory."""
        self._store = store
        self._writes = writes
        self._clock = clock
        self._meters = meters
        self._turn = asyncio.Semaphore(UNDER_WAY_MAX)

    async def change(self, changes: Mapping[ProducerId, Change[A]]) -> dict[ProducerId, A]:
        """Apply the change to each producer's record in one write, and return the answers.

        Each change function may be called several times. The first `ProblemError` of a function is raised. Raises
        `coordination_unavailable` if the store does not answer in time, `internal` for a record that cannot be read,
        and `TransactionTooLarge` if the records do not fit in one write.
        """
        async with self._turn:
            deadline = self._clock.monotonic() + SECONDS_MAX
            side_effect = SideEffect.NONE
            while True:
                try:
                    return await self._attempt(changes)
                except RecordUnreadable as error:
                    raise ProblemError("internal", str(error)) from error
                except TransactionTooLarge:
                    raise
                except CoordinationError as error:
                    if isinstance(error, UnknownOutcome):
                        # The next attempt reads the records; a commit that was written is then answered as committed.
                        side_effect = SideEffect.MAYBE
                    if self._clock.monotonic() + RETRY_SECONDS >= deadline:
                        raise ProblemError(
                            "coordination_unavailable",
                            f"the coordination store did not answer: {error}",
                            side_effect=side_effect,
                        ) from error
                    await asyncio.sleep(RETRY_SECONDS)  # noqa: TID251 - no event announces that the store answers again

    async def _attempt(self, changes: Mapping[ProducerId, Change[A]]) -> dict[ProducerId, A]:
        standings = await self._store.read(list(changes))
        while True:
            answers, replaced = self._changed(changes, standings)
            if not replaced:
                return answers
            written, found = await self._store.write(replaced)
            standings |= found
            for producer_id, standing in found.items():
                self._writes.noted(producer_id, standing)
            if written:
                self._meters.wrote(len(replaced))
                return answers

    def _changed(
        self, changes: Mapping[ProducerId, Change[A]], standings: Mapping[ProducerId, Standing]
    ) -> tuple[dict[ProducerId, A], dict[ProducerId, Replacement]]:
        """Return the answers, and the records to write. Raises the refusal of a change."""
        now_us = self._clock.now_us()
        answers: dict[ProducerId, A] = {}
        replaced: dict[ProducerId, Replacement] = {}
        for producer_id, change in changes.items():
            record, answers[producer_id] = change(standings[producer_id].record, now_us)
            if record is not None:
                replaced[producer_id] = Replacement.encoded(standings[producer_id], record)
        return answers, replaced
