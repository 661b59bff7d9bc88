"""The partitions that a consumer reads: assignment, positions, pauses.

`Consumer` uses this module, looks up offsets at the leaders and wakes the fetcher. `AssignedPartitions` is synchronous
and works on existing cursors. The module must not depend on groups or on how batches are fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.connection.metadata import Picture
from fairlead.errors import SettingError
from fairlead.reading.cursors import Cursor, Prefetch
from fairlead.reading.offsets import OffsetLookup, Position
from fairlead.reading.reader import BatchReader
from fairlead.timestamps import timestamp_us_of
from fairlead.topic_partition import TopicPartition


class AssignedPartitions:
    """Assigned partitions of one consumer, which are kept when the consumer is closed and started again."""

    def __init__(self, prefetch: Prefetch, reader: BatchReader) -> None:
        self._prefetch = prefetch
        self._reader = reader
        self._topics: dict[str, str] = {}
        """Ids, by name, of the topics that are read with all their partitions."""
        self.is_chosen = False
        """Whether the program has called `assign`."""

    @property
    def names(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return frozenset(self._prefetch.cursors)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(place for place, cursor in self._prefetch.cursors.items() if cursor.paused)

    def cursor(self, partition: TopicPartition) -> Cursor:
        """Return the cursor of a partition. Raises `SettingError` if the partition is not assigned."""
        cursor = self._prefetch.cursors.get(partition)
        if cursor is None:
            assigned = ", ".join(sorted(map(str, self._prefetch.cursors))) or "none"
            raise SettingError("partition", str(partition), f"an assigned partition; assigned: {assigned}")
        return cursor

    def cursors(self, partitions: Iterable[TopicPartition]) -> list[Cursor]:
        """Return the cursors of these partitions, or of all assigned partitions if none is given."""
        return [self.cursor(place) for place in partitions] or list(self._prefetch.cursors.values())

    def choose(self, cursors: Iterable[Cursor], topics: Mapping[str, str]) -> None:
        """Replace the assignment; all partitions of `topics` are read, including partitions added later."""
        self._prefetch.assign(cursors)
        self._topics = dict(topics)
        self.is_chosen = True

    def grow(self, picture: Picture) -> None:
        """Assign the new partitions of topics that are read as a whole, starting at their first record."""
        for name, topic_id in self._topics.items():
            found = picture.topics.get(name)
            if found is None or found.topic_id != topic_id:
                continue
            for index in range(len(found.partitions)):
                place = TopicPartition(name, index)
                if place not in self._prefetch.cursors:
                    self._prefetch.add([Cursor(name, topic_id, index, 0)])

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move a partition to an offset; the partition's batch that was taken last counts as processed."""
        cursor = self.cursor(partition)
        self._prefetch.seek(cursor, offset)
        if self._reader.hand is cursor:
            # The new position is committed later, not the end of the batch that was taken last.
            self._reader.finished()


def places_of(partitions: Iterable[object]) -> list[TopicPartition]:
    """Return the partitions without duplicates. Raises `SettingError` for other values, such as a topic name."""
    places = []
    for place in [partitions] if isinstance(partitions, str) else dict.fromkeys(partitions):
        if not isinstance(place, TopicPartition):
            allowed = 'TopicPartition("orders", 0), several of them, or topic="orders" for all partitions of a topic'
            raise SettingError("partitions", place, allowed)
        places.append(place)
    return places


async def offsets_of(
    lookup: OffsetLookup, wanted: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, int]:
    """Return the offset of each position: numbers are returned unchanged, log ends and times are looked up."""
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
        offsets |= await lookup.offsets(asked)
    return {place: offsets[place] for place in wanted}


def _checked(position: Position) -> Position:
    if position in ("earliest", "latest"):
        return position
    if isinstance(position, str):
        raise SettingError("position", position, "earliest, latest, an offset or an aware datetime")
    timestamp_us_of(position, "position")
    return position
