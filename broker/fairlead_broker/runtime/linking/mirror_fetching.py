"""Fetchers of the links whose mirrors this broker leads: a fetcher is started when a link has mirrors to fetch."""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead_broker.coordination.mirror import Mirror, MirrorUpdate
from fairlead_broker.registry.link_records import LinkRecord, LinkState
from fairlead_broker.registry.metadata import LinkChange, PartitionChange, TopicChange
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.linking.link_fetcher import CopyParts, LinkFetcher
from fairlead_broker.runtime.linking.link_meters import LinkMeters
from fairlead_broker.runtime.linking.mirror_records import COPIES

TICK_SECONDS: Final = 1.0
"""Seconds between two searches for mirrors without a fetcher. A leader's role begins only after this broker's mirror
shows the partition record."""


class MirrorFetching:
    """Fetchers by link."""

    def __init__(self, mirror: Mirror, parts: CopyParts, meters: LinkMeters) -> None:
        self._metadata = mirror.metadata
        self._parts = parts
        self._meters = meters
        self._running: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        mirror.subscribe(self._changed)

    async def run(self) -> None:
        """Start fetchers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                for link, record in self._metadata.links.items():
                    for mirror in self._mirrors(link):
                        mirror.copying.acknowledge(record.value.acknowledgements)
                    running = self._running.get(link)
                    if (running is None or running.done()) and self._is_due(link, record.value):
                        self._running[link] = tasks.create_task(
                            self._fetcher(link).run(), name=f"link {link}"
                        )
                # A broker without links does not search all its replicas.
                mirrors = (
                    [each for each in self._parts.replicas if each.mirror] if self._metadata.links else []
                )
                self._meters.show(mirrors, self._parts.clock.monotonic())
                try:
                    async with asyncio.timeout(TICK_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    def _is_due(self, link: str, record: LinkRecord) -> bool:
        return record.state is LinkState.RUNNING and any(
            each.copying.fault is None for each in self._mirrors(link)
        )

    def _fetcher(self, link: str) -> LinkFetcher:
        return LinkFetcher(
            link,
            lambda: None if (found := self._metadata.links.get(link)) is None else found.value,
            lambda: self._mirrors(link),
            self._parts,
        )

    def _mirrors(self, link: str) -> list[LeaderReplica]:
        """Return the mirrors of a link that this broker leads, in the states in which mirrors are fetched."""
        return [
            each
            for each in self._parts.replicas
            if each.mirror is not None and each.mirror.link == link and each.mirror.state in COPIES
        ]

    def _changed(self, update: MirrorUpdate) -> None:
        watched = LinkChange | TopicChange | PartitionChange if self._metadata.links else LinkChange
        if any(isinstance(each, watched) for each in update.changes):
            self._wake.set()
