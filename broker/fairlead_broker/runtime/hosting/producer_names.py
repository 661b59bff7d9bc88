"""Names of producers expire after seven idle days; looked at once an hour."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from fairlead_api.identifiers import ProducerId
from fairlead_broker.coordination.producer_registry import ProducerRegistry
from fairlead_broker.coordination.protocol import CoordinationClosed, CoordinationError
from fairlead_broker.registry.records import RecordUnreadable
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.telemetry import Log

INTERVAL_SECONDS: Final = 3600.0


class ProducerNames:
    """Runs until cancelled."""

    __slots__ = ("_log", "_partitions", "_registry")

    def __init__(self, registry: ProducerRegistry, partitions: Iterable[LeaderReplica], log: Log) -> None:
        self._registry = registry
        self._partitions = partitions
        self._log = log

    async def run(self) -> None:
        """Do it again and again."""
        while True:
            # The only event to wait for is time.
            await asyncio.sleep(INTERVAL_SECONDS)  # noqa: TID251
            try:
                await self.forget_idle()
            except CoordinationClosed:
                raise
            except (CoordinationError, RecordUnreadable) as error:
                self._log.warning("idle producer names not dropped", reason=str(error))

    async def forget_idle(self) -> int:
        """Do it once; return how many names were dropped."""
        return await self._registry.forget_idle_names(self._is_active)

    def _is_active(self, producer_id: ProducerId) -> bool:
        return any(partition.knows_producer(producer_id) for partition in self._partitions)
