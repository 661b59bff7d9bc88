"""Where a consumer stands in what is assigned to it: positions, seeking, pausing, ends of the log.

The base of `Consumer`, which opens it and reads. Must not know groups, nor how batches are fetched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead.errors import ClosedError, FairleadError, SettingError
from fairlead.reading.cursors import Cursor, Prefetch
from fairlead.reading.fetcher import Fetcher
from fairlead.reading.offsets import OffsetAndTimestamp, OffsetLookup, Position
from fairlead.reading.reader import BatchReader
from fairlead.records import ConsumerBatch
from fairlead.settings import ConsumerSettings
from fairlead.timestamps import timestamp_us_of
from fairlead.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class HeldBack:
    """A batch that waits for its commit before it is handed out; `committed` ends with why it was refused."""

    batch: ConsumerBatch
    committed: asyncio.Future[FairleadError | None]
    is_taken_back: bool = False
    """Whether that is the commit of the position before it: its partition was paused, so it is not handed out now."""


class AssignedPartitions:
    """The partitions that are read, by name. Everything here is for a consumer that is open."""

    _lookup: OffsetLookup
    _fetcher: Fetcher
    _arrival: asyncio.Event

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._prefetch = Prefetch(settings)
        # Of a consumer that was never started nothing is in hand.
        self._reader = BatchReader(self._prefetch, lambda: None)
        self._held_back: HeldBack | None = None
        """A batch that is committed before it is handed out, and was not handed out yet."""
        self._open = False
        self._closing = False
        """Whether nothing more is handed out; what a callback needs works until the partitions are given up."""

    def _begin_anew(self, *, goes_on: bool) -> None:
        """Forget what was under way when the consumer was closed; `goes_on`: where it stood, or without partitions."""
        cursors = list(self._prefetch.cursors.values()) if goes_on else []
        for cursor in cursors:
            cursor.seek(cursor.position, cursor.position_epoch)
        self._prefetch = Prefetch(self._settings)
        self._prefetch.add(cursors)
        self._held_back = None

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read."""
        return frozenset(self._prefetch.cursors)

    async def seek(self, partition: TopicPartition, position: Position) -> int:
        """Continue a partition at an offset, an end of the log or a time; returns the offset.

        Also the way on after a partition raised an error. A time after the last record means the end.
        """
        self._check_open()
        self._cursor(partition)
        offset = (await self._offsets_of({partition: position}))[partition]
        # Only now: the partition may have been revoked during the wait, and may be assigned again.
        cursor = self._cursor(partition)
        self._prefetch.seek(cursor, offset)
        if self._reader.hand is cursor:
            # Where the reader goes on is what counts, not the batch it leaves.
            self._reader.finished()
        if self._held_back is not None and self._held_back.batch.topic_partition == partition:
            self._held_back = None
        self._fetcher.wake()
        return offset

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop fetching and handing out these partitions until `resume`; without arguments all partitions.

        In a loop over `records` it takes effect at the next record; the rest of the batch follows after `resume`.
        Continue to take batches: heartbeats do not need it, but `processing_timeout` counts from take to take.
        A partition that is revoked and assigned again is not paused.
        """
        self._check_open()
        for cursor in self._chosen(partitions):
            cursor.paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with paused partitions where they stood, without partitions with all of them."""
        self._check_open()
        for cursor in self._chosen(partitions):
            cursor.paused = False
        self._fetcher.wake()
        self._arrival.set()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(place for place, cursor in self._prefetch.cursors.items() if cursor.paused)

    def position(self, partition: TopicPartition) -> int:
        """Return the offset after the last batch handed out: where reading goes on."""
        return self._cursor(partition).position

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the end of what can be read, as the last fetch told it; None before the first."""
        return self._cursor(partition).high_watermark

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Ask for the end of each assigned partition now, for `batches(until=...)`."""
        self._check_open()
        return await self._offsets_of(dict.fromkeys(self._prefetch.cursors, "latest"))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time; None where there is none."""
        self._check_open()
        return await self._lookup.lookup(times)

    async def _offsets_of(self, wanted: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
        """Return offsets as they are, ends and times as the leaders answer them."""
        asked: dict[TopicPartition, Position] = {}
        offsets: dict[TopicPartition, int] = {}
        for place, position in wanted.items():
            if isinstance(position, int):
                if position < 0:
                    raise SettingError("offset", position, "0 or more, an aware datetime, earliest or latest")
                offsets[place] = position
            else:
                asked[place] = _checked(position)
        if asked:
            offsets |= await self._lookup.offsets(asked)
        return {place: offsets[place] for place in wanted}

    def _cursor(self, partition: TopicPartition) -> Cursor:
        cursor = self._prefetch.cursors.get(partition)
        if cursor is None:
            assigned = ", ".join(sorted(map(str, self._prefetch.cursors))) or "none"
            raise SettingError("partition", str(partition), f"an assigned partition; assigned: {assigned}")
        return cursor

    def _chosen(self, partitions: Iterable[TopicPartition]) -> list[Cursor]:
        return [self._cursor(place) for place in partitions] or list(self._prefetch.cursors.values())

    def _check_reading(self) -> None:
        if not self._open or self._closing:
            raise ClosedError("consumer")

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError("consumer")


def _checked(position: Position) -> Position:
    if position in ("earliest", "latest"):
        return position
    if isinstance(position, str):
        raise SettingError("position", position, "earliest, latest, an offset or an aware datetime")
    timestamp_us_of(position, "position")
    return position
