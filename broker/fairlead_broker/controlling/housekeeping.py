"""Periodic tasks of the controller: compaction of the coordination store, removal of old tombstones and expired tokens.

The runtime of every broker runs the housekeeping. Every broker records the current revision with its time, so that a
new controller knows the age of each revision. Only the controller compacts the store and removes outdated keys.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import structlog

from fairlead_api.identifiers import Revision
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock, ExpiryTime
from fairlead_broker.controller.term import portions
from fairlead_broker.controller.topics import Planning, plan_forgetting
from fairlead_broker.controlling.plan_runner import PlanRunner
from fairlead_broker.controlling.topic_completion import HeldTerm, required_term
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination, CoordinationClosed, CoordinationError
from fairlead_broker.registry.store_writes import Delete, Transaction, unchanged_since

INTERVAL_SECONDS: Final = 60.0
EXPIRED_TOKEN_SECONDS: Final = 30 * 86_400
"""Number of seconds that an expired API token remains in the list of tokens."""
HISTORY_SECONDS: Final = 600.0
"""History of the store to keep, in seconds. A watch can resume at its last revision after a shorter interruption."""
HISTORY_REVISIONS: Final = 500_000
"""Maximum number of revisions to keep that are older than `HISTORY_SECONDS_MIN`. Transactions of producers can
create thousands of revisions a second, which fill the store."""
HISTORY_SECONDS_MIN: Final = 60.0
"""Minimum history of the store to keep, in seconds, however many revisions it has."""

_log = structlog.get_logger("fairlead.coordination")


class Housekeeping:
    """Periodic compaction, every minute, to the revision of ten minutes ago, or to a newer one after many revisions."""

    def __init__(self, coordination: Coordination, mirror: Mirror, term: HeldTerm, clock: Clock) -> None:
        self._coordination = coordination
        self._mirror = mirror
        self._term = term
        self._clock = clock
        self._expiry = ExpiryTime(clock)
        self._runner = PlanRunner(coordination, mirror)
        self._seen: deque[tuple[float, Revision]] = deque()

    async def run(self) -> None:
        """Perform the due tasks at every interval until the task is cancelled or the client is closed."""
        while True:
            try:
                await self.tick()
            except CoordinationClosed:
                raise
            except (CoordinationError, ProblemError) as error:
                _log.warning("housekeeping failed", reason=str(error))
            # No event announces that a compaction is due.
            await asyncio.sleep(INTERVAL_SECONDS)  # noqa: TID251

    async def tick(self) -> None:
        """Perform the tasks that are due now."""
        page = await self._coordination.list(self._mirror.metadata.keys.cluster, limit=1)
        now = self._clock.monotonic()
        self._seen.append((now, page.revision))
        due = None
        while self._seen and self._is_old(*self._seen[0], now, page.revision):
            due = self._seen.popleft()[1]
        if self._term() is None:
            return
        if due is not None:
            await self._coordination.compact(due)
            _log.debug("history of the store compacted", revision=due)
        await self._runner.complete(self._forgetting)
        await self._runner.complete(self._removing_tokens)

    @staticmethod
    def _is_old(seen: float, revision: Revision, now: float, newest: Revision) -> bool:
        if seen <= now - HISTORY_SECONDS:
            return True
        return seen <= now - HISTORY_SECONDS_MIN and revision <= newest - HISTORY_REVISIONS

    def _forgetting(self, size: int) -> tuple[Transaction, ...]:
        planning = Planning(
            term=required_term(self._term),
            brokers=self._mirror.metadata.brokers,
            cluster_config=None,
            now_us=self._expiry.now_us(),
            partitions_max=size,
        )
        return plan_forgetting(planning, self._mirror.metadata.deleted_topics)

    def _removing_tokens(self, size: int) -> tuple[Transaction, ...]:
        """Return the removals of API tokens that expired long ago (rule A13), in transactions of a bounded size."""
        metadata, term = self._mirror.metadata, required_term(self._term)
        last_us = self._expiry.now_us() - EXPIRED_TOKEN_SECONDS * 1_000_000
        old = [
            (metadata.keys.token(token_id), token.mod_revision)
            for token_id, token in metadata.tokens.items()
            if token.value.expires_us is not None and token.value.expires_us <= last_us
        ]
        return tuple(
            Transaction(
                (term.guard, *(unchanged_since(key, revision) for key, revision in portion)),
                tuple(Delete(key) for key, _ in portion),
            )
            for portion in portions(old, size)
        )
