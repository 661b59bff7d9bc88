"""Runs plans against the store until nothing is left to do.

For `topics` and `housekeeping`. A plan is made from the mirror; when a transaction of it finds something changed,
the mirror is brought to where that shows and the plan is made again. Decides nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.controller.term import PARTITIONS_MAX
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationUnavailable,
    TransactionTooLarge,
    UnknownOutcome,
)
from fairlead_broker.registry.transactions import Transaction

ATTEMPTS_MAX: Final = 100
"""Attempts before giving up; each failed attempt means that a write of another broker succeeded."""

Plan: TypeAlias = Callable[[int], Sequence[Transaction]]
"""From the most partitions in one transaction to what is left to do as of the mirror; empty when all is done."""


class PlanRunner:
    """Drives plans of this controller."""

    def __init__(self, coordination: Coordination, mirror: Mirror) -> None:
        self._coordination = coordination
        self._mirror = mirror

    async def complete(self, plan: Plan) -> None:
        """Make and run the plan until it is empty. What the plan raises passes through.

        Raises `ProblemError` `coordination_unavailable`, its side effect `maybe` if something was or may have been
        written, and `conflict` when others keep changing what the plan is about.
        """
        await self._drive(plan, only_first=False)

    async def begin(self, plan: Plan) -> bool:
        """Plan again until the first transaction succeeds, and leave the rest to the caller. Raises as above.

        For plans that must not be made again on a state that another broker changed after their first write. Returns
        False for an empty plan.
        """
        return await self._drive(plan, only_first=True)

    async def _drive(self, plan: Plan, *, only_first: bool) -> bool:
        partitions_max, written = PARTITIONS_MAX, False
        for _ in range(ATTEMPTS_MAX):
            transactions = plan(partitions_max)
            if not transactions:
                return False
            try:
                for transaction in transactions:
                    if not await self._run(transaction):
                        break
                    written = True
                    if only_first:
                        return True
            except TransactionTooLarge:
                if partitions_max == 1:
                    raise
                partitions_max = max(1, partitions_max // 2)
            except UnknownOutcome:
                written = True
                await self._catch_up()
            except CoordinationUnavailable as error:
                raise _unavailable(error, written) from error
        detail = f"others changed the same keys {ATTEMPTS_MAX} times in a row"
        raise ProblemError("conflict", detail, side_effect=SideEffect.MAYBE if written else None)

    async def _run(self, transaction: Transaction) -> bool:
        """Run one transaction and let the mirror show its effect, or what was in its way."""
        result = await self._coordination.transact(
            transaction.compares, transaction.success, transaction.failure
        )
        await self._mirror.wait_for(result.revision)
        return result.succeeded

    async def _catch_up(self) -> None:
        """Bring the mirror to the store's present: what is planned on it then is guarded against a late write."""
        try:
            page = await self._coordination.list(self._mirror.metadata.keys.cluster, limit=1)
            await self._mirror.wait_for(page.revision)
        except CoordinationUnavailable as error:
            raise _unavailable(error, written=True) from error


def _unavailable(error: CoordinationUnavailable, written: bool) -> ProblemError:
    return ProblemError(
        "coordination_unavailable",
        f"the coordination store did not answer: {error}",
        side_effect=SideEffect.MAYBE if written else None,
    )
