"""Requested cleaning rounds, and the last round of each partition.

`cleanings` records requests and reads last rounds; the cleaner takes requests and records rounds.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from fairlead_api.bodies.cleaning import CleaningRound
from fairlead_api.identifiers import Offset, TopicIdPartition

REQUEST_SECONDS_MAX: Final = 600.0
"""Number of seconds after which an unfulfilled request ends: no round could carry it out, for example because the
records are younger than `min.compaction.lag.ms`.
"""


@dataclass(frozen=True, slots=True)
class CleaningWanted:
    """A requested cleaning round of a partition."""

    end_offset: Offset
    """Offset up to which the partition must be cleaned, possibly in several rounds."""
    until: float
    """Monotonic time at which the request ends."""


@dataclass(slots=True)
class CleaningRequests:
    """Pending requests and last rounds of one broker's partitions."""

    is_on: bool
    """Whether the cleaner runs."""
    wanted: dict[TopicIdPartition, CleaningWanted] = field(default_factory=dict)
    last_rounds: dict[TopicIdPartition, CleaningRound] = field(default_factory=dict)
    _noted: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, key: TopicIdPartition, end_offset: Offset, now: float) -> None:
        """Request rounds until a partition is cleaned up to an offset. `now`: monotonic time."""
        self.wanted[key] = CleaningWanted(end_offset, now + REQUEST_SECONDS_MAX)
        self._noted.set()

    def forget(self, now: float) -> None:
        """Drop requests that are too old."""
        for key in [key for key, wanted in self.wanted.items() if wanted.until <= now]:
            del self.wanted[key]

    async def wait(self, seconds: float) -> None:
        """Wait for the next request, for a limited time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._noted.wait()
        self._noted.clear()
