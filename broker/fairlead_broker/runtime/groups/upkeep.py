"""Periodic work of coordinators: claiming unowned groups, expiring old offsets, exporting lag.

Used by `wiring`. A call that names a group claims the group. The upkeep claims groups that no call names: otherwise
their members would never time out and their offsets would never expire (protocol section 5, rule 4).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from fairlead_api.identifiers import TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock, ExpiryTime
from fairlead_broker.coordination.cluster_values import cluster_number
from fairlead_broker.coordination.mirror import Mirror, MirrorUpdate
from fairlead_broker.coordination.protocol import CoordinationClosed, CoordinationError
from fairlead_broker.registry.metadata import BrokerChange
from fairlead_broker.registry.records import RecordUnreadable
from fairlead_broker.runtime.groups.groups import Groups
from fairlead_broker.runtime.groups.lag_meters import GroupLagMeters
from fairlead_broker.telemetry import Log

LAG_SECONDS: Final = 15.0
"""Number of seconds between two exports of the lag."""
PASS_SECONDS: Final = 600.0
"""Number of seconds between two passes over all groups of the cluster; the loss of a broker causes an additional
pass."""
PAGE_GROUPS: Final = 100
PICTURE_SECONDS_MAX: Final = 2.0
"""Maximum number of seconds for which an expiry pass waits for the mirror."""
OFFSETS_RETENTION: Final = "offsets.retention.minutes"


class GroupUpkeep:
    """Task that claims groups, expires offsets and exports the lag, until it is cancelled."""

    def __init__(self, groups: Groups, mirror: Mirror, lag: GroupLagMeters, clock: Clock, log: Log) -> None:
        self._groups = groups
        self._mirror = mirror
        self._metadata = mirror.metadata
        self._lag = lag
        self._clock = clock
        self._expiry = ExpiryTime(clock)
        self._log = log
        self._wanted = asyncio.Event()
        self._pass_at = clock.monotonic()
        mirror.subscribe(self._changed)
        groups.on_loss = self._wanted.set

    async def run(self) -> None:
        """Run passes over all groups and export the lag, until cancelled."""
        while True:
            try:
                if self._wanted.is_set() or self._clock.monotonic() >= self._pass_at:
                    self._wanted.clear()
                    self._pass_at = self._clock.monotonic() + PASS_SECONDS
                    await self.look_at_all()
                await self._lag.show()
            except CoordinationClosed:
                raise
            except (CoordinationError, ProblemError, RecordUnreadable) as error:
                self._log.warning("group upkeep failed", reason=str(error))
            # Lag is exported at intervals, because no event announces its changes.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAG_SECONDS):
                    await self._wanted.wait()

    async def look_at_all(self) -> None:
        """Claim every unowned group that hashing assigns to this broker, and expire old offsets of its groups.

        Raises `CoordinationError`, after which the next pass continues with the remaining groups.
        """
        after: str | None = None
        while True:
            names, after = await self._groups.adoptable(after, PAGE_GROUPS)
            for name in names:
                # Another broker may have claimed the group, or the group was deleted.
                with suppress(ProblemError):
                    await self._groups.adopt(name)
            if after is None:
                break
        await self.forget_old()

    async def forget_old(self) -> None:
        """Delete expired offsets, offsets of deleted topics, and groups without members and offsets.

        An adopted group may have offsets of a topic that this broker's mirror does not show yet. If the mirror does not
        reach the revisions of all claims in time, nothing is deleted in this pass.
        """
        try:
            async with asyncio.timeout(PICTURE_SECONDS_MAX):
                await self._mirror.wait_for(max((each.claim.revision for each in self._groups), default=0))
        except TimeoutError:
            return
        minutes = cluster_number(self._metadata, OFFSETS_RETENTION)
        old_before = TimestampUs(self._expiry.now_us() - minutes * 60_000_000)
        for coordinated in self._groups:
            # The group may have changed since its claim was read; this pass then skips the group. The next pass expires
            # the group's old offsets.
            with suppress(ProblemError):
                await coordinated.forget_old(old_before, self._is_gone)

    def _is_gone(self, topic_id: TopicId) -> bool:
        return self._metadata.topic_by_id(topic_id) is None

    def _changed(self, update: MirrorUpdate) -> None:
        if any(isinstance(change, BrokerChange) and change.after is None for change in update.changes):
            self._wanted.set()
