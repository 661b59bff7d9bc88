"""The committed offsets of one group, as its coordinator holds them in memory.

Read at once, changed only by what has been written: whoever commits asks for the records that a change makes, writes
them, and then takes them over. Knows no store and no task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from fairlead_api.identifiers import TopicId
from fairlead_broker.coordination.group_store import Block
from fairlead_broker.registry.group_records import OFFSETS_PER_KEY, OffsetEntry, OffsetsRecord

Entries: TypeAlias = Mapping[tuple[TopicId, int], OffsetEntry | None]
"""By topic and partition; None takes the offset away."""


class CommittedOffsets:
    """Where a group goes on, by topic and partition."""

    __slots__ = ("_blocks", "_unknown")

    def __init__(self, blocks: Mapping[Block, OffsetsRecord]) -> None:
        """Begin with what was loaded."""
        self._blocks: dict[Block, dict[int, OffsetEntry]] = {
            block: {entry.partition: entry for entry in record.entries} for block, record in blocks.items()
        }
        self._unknown = {block: record.unknown for block, record in blocks.items() if record.unknown}

    def __bool__(self) -> bool:
        return any(self._blocks.values())

    def get(self, topic_id: TopicId, partition: int) -> OffsetEntry | None:
        """Return where the group goes on in one partition; None where nothing is committed."""
        entries = self._blocks.get((topic_id, partition // OFFSETS_PER_KEY))
        return None if entries is None else entries.get(partition)

    def items(self) -> Iterator[tuple[TopicId, OffsetEntry]]:
        """Return all, by topic id and partition."""
        for (topic_id, _), entries in sorted(self._blocks.items()):
            for _, entry in sorted(entries.items()):
                yield topic_id, entry

    def matching(self, wanted: Callable[[TopicId, OffsetEntry], bool]) -> list[tuple[TopicId, int]]:
        """Return the partitions whose offset is of that kind."""
        return [(topic_id, entry.partition) for topic_id, entry in self.items() if wanted(topic_id, entry)]

    def changed(self, entries: Entries) -> dict[Block, OffsetsRecord | None]:
        """Return the records that a change makes, None for one that is to go; nothing is changed here."""
        blocks: dict[Block, dict[int, OffsetEntry]] = {}
        for (topic_id, partition), entry in entries.items():
            key = (topic_id, partition // OFFSETS_PER_KEY)
            block = blocks.get(key)
            if block is None:
                block = blocks[key] = dict(self._blocks.get(key, {}))
            if entry is None:
                block.pop(partition, None)
            else:
                block[partition] = entry
        return {key: self._record(key, block.values()) for key, block in blocks.items()}

    def take(self, blocks: Mapping[Block, OffsetsRecord | None]) -> None:
        """Hold what has been written."""
        for key, record in blocks.items():
            if record is None:
                self._blocks.pop(key, None)
            else:
                self._blocks[key] = {entry.partition: entry for entry in record.entries}

    def _record(self, block: Block, entries: Iterable[OffsetEntry]) -> OffsetsRecord | None:
        ordered = tuple(sorted(entries, key=lambda entry: entry.partition))
        if not ordered:
            return None
        return OffsetsRecord(entries=ordered, unknown=self._unknown.get(block, {}))
