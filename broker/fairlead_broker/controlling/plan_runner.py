"""Execution of plans: transactions are run against the store until no step of the plan remains.

`topics` and `housekeeping` use this module, which makes no decisions. A plan is computed from the mirror. If a
compare of a transaction fails, the runner waits until the mirror shows the conflicting write, and computes the
plan again. If a plan refuses the request, the runner catches up with the store and computes the plan again, because the
mirror may lag behind a write that the caller has already seen, such as the registration of a broker.
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
from fairlead_broker.registry.store_writes import Transaction

ATTEMPTS_MAX: Final = 100
"""Maximum number of attempts. Each failed attempt means that a write by another broker succeeded."""

Plan: TypeAlias = Callable[[int], Sequence[Transaction]]
"""Function that returns the remaining transactions according to the mirror, or no transactions when the plan is
complete. The argument of the function is the maximum number of partitions in one transaction.
"""


class PlanRunner:
    """Runner of plans for this broker's controller."""

    def __init__(self, coordination: Coordination, mirror: Mirror) -> None:
        self._coordination = coordination
        self._mirror = mirror

    async def complete(self, plan: Plan) -> None:
        """Compute and run the plan until it is empty. Raises the plan's `ProblemError` if it remains on current data.

        Raises `ProblemError` `coordination_unavailable`, with the side effect `maybe` if a write succeeded or may have
        succeeded, and `conflict` if other brokers keep changing the same keys.
        """
        await self._drive(plan, only_first=False)

    async def begin(self, plan: Plan) -> bool:
        """Compute and run the plan until its first transaction succeeds. The caller runs the remaining transactions.

        Use this method if the plan must not be computed again after its first write, because another broker may have
        changed the state since. Returns False for an empty plan. Raises the errors of `complete`.
        """
        return await self._drive(plan, only_first=True)

    async def _drive(self, plan: Plan, *, only_first: bool) -> bool:
        partitions_max, written, current = PARTITIONS_MAX, False, False
        for _ in range(ATTEMPTS_MAX):
            try:
                transactions = plan(partitions_max)
            except ProblemError:
                if current:
                    raise
                await self._catch_up(written)
                current = True
                continue
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
                await self._catch_up(written)
            except CoordinationUnavailable as error:
                raise _unavailable(error, written) from error
        detail = f"other brokers changed the same keys in {ATTEMPTS_MAX} consecutive attempts"
        raise ProblemError("conflict", detail, side_effect=SideEffect.MAYBE if written else None)

    async def _run(self, transaction: Transaction) -> bool:
        """Run one transaction, and wait until the mirror shows its effect or the conflicting write."""
        result = await self._coordination.transact(
            transaction.compares, transaction.success, transaction.failure
        )
        await self._mirror.wait_for(result.revision)
        return result.succeeded

    async def _catch_up(self, written: bool) -> None:
        """Wait until the mirror has caught up with the store, so that the next compares reject delayed writes."""
        try:
            page = await self._coordination.list(self._mirror.metadata.keys.cluster, limit=1)
            await self._mirror.wait_for(page.revision)
        except CoordinationUnavailable as error:
            raise _unavailable(error, written) from error


def _unavailable(error: CoordinationUnavailable, written: bool) -> ProblemError:
    return ProblemError(
        "coordination_unavailable",
        f"the coordination store did not answer: {error}",
        side_effect=SideEffect.MAYBE if written else None,
    )
