"""Gives up damaged copies that others have whole: out of the in-sync replicas first, then cut, then fetched anew.

One task looks at the logs now and then: damage is found by recovery, by the scrub and by readers, and noted in the log.
The order is a rule (protocol section 2): nothing is dropped before the record says that nobody counts on this copy, and
where nobody else is left to count on, nothing is dropped at all.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead_api.identifiers import Revision, TopicIdPartition
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationClosed,
    CoordinationError,
)
from fairlead_broker.registry.isr import taken_out
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.transactions import Put, created_at, unchanged_since
from fairlead_broker.runtime.hosting.replicas import Replicas
from fairlead_broker.runtime.lifecycle.incarnation import Incarnation
from fairlead_broker.telemetry import Log

LOOK_SECONDS: Final = 1.0
"""Damage is rare, and a damaged copy that is followed or led does no harm meanwhile: its range is not served."""


class DamageRepair:
    """Looks until cancelled."""

    def __init__(
        self,
        coordination: Coordination,
        mirror: Mirror,
        life: Incarnation,
        directory: str,
        partitions: Replicas,
        log: Log,
    ) -> None:
        """`directory`: id of the data directory."""
        self._coordination = coordination
        self._mirror = mirror
        self._life = life
        self._directory = directory
        self._partitions = partitions
        self._log = log
        self._left: dict[TopicIdPartition, Revision] = {}
        """Records as they stood when this broker had taken itself out, of copies that are still to be cut."""

    async def run(self) -> None:
        """Look again and again."""
        while True:
            # The only event to wait for is time.
            await asyncio.sleep(LOOK_SECONDS)  # noqa: TID251
            await self.look()

    async def look(self) -> None:
        """Repair what is damaged and can be had from somebody else."""
        damaged = self._partitions.damaged()
        self._left = {key: revision for key, revision in self._left.items() if key in damaged}
        for key in damaged:
            try:
                if await self._leave(key) and await self._partitions.drop_damaged(key):
                    # It may be followed again by the very same record, and damaged again.
                    self._left.pop(key, None)
            except CoordinationClosed:
                raise
            except CoordinationError as error:
                # It may be written or not; the next look begins with the record as it is then.
                self._log.warning("damaged copy not given up yet", partition=str(key), reason=str(error))

    async def _leave(self, key: TopicIdPartition) -> bool:
        """Take this broker out of the record; false where that cannot be, or another record came in between."""
        metadata = self._mirror.metadata
        found = metadata.partitions(key.topic_id).get(key.partition)
        if found is None:
            return False
        if self._left.get(key) == found.mod_revision:
            # The cut has failed, on a full disk. Without a role since then, nothing that it says counts.
            return True
        successor = taken_out(found.value, self._life.broker, self._directory)
        if successor is None:
            return False
        name, own = (
            metadata.keys.partition(key.topic_id, key.partition),
            metadata.keys.broker(self._life.broker),
        )
        result = await self._coordination.transact(
            (unchanged_since(name, found.mod_revision), created_at(own, self._life.epoch)),
            (Put(name, encode(successor)),),
        )
        await self._mirror.wait_for(result.revision)
        if result.succeeded:
            self._left[key] = result.revision
            self._log.error("damaged copy given up, to be fetched anew", partition=str(key))
        return result.succeeded
