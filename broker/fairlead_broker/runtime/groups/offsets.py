"""One commit of offsets, which are checked on arrival and again at the time of the write.

Used by `coordinated_group`. While a commit waits to be written to the store, its member may give up partitions. The
offsets of a commit are therefore checked again when they are written (protocol section 5, rule 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeAlias

import msgspec

from fairlead_api.bodies.group_answers import CommitAnswer, CommitResult, CommittedOffset
from fairlead_api.bodies.group_requests import CommitRequest, OffsetCommit
from fairlead_api.identifiers import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TimestampUs,
    TopicId,
    TopicIdPartition,
)
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp
from fairlead_broker.coordination.group_store import Block
from fairlead_broker.peers.positions import PositionFound
from fairlead_broker.registry.group_records import OFFSETS_PER_KEY, OffsetEntry, OffsetsRecord
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.runtime import refusals

Entries: TypeAlias = Mapping[tuple[TopicId, int], OffsetEntry | None]
"""Offsets by topic and partition; None deletes an offset."""


class CommittedOffsets:
    """Committed offsets of a group, by topic and partition."""

    __slots__ = ("_blocks", "_unknown")

    def __init__(self, blocks: Mapping[Block, OffsetsRecord]) -> None:
        """Initialize the offsets from the records that were loaded."""
        self._blocks: dict[Block, dict[int, OffsetEntry]] = {
            block: {entry.partition: entry for entry in record.entries} for block, record in blocks.items()
        }
        self._unknown = {block: record.unknown for block, record in blocks.items() if record.unknown}

    def __bool__(self) -> bool:
        return any(self._blocks.values())

    def get(self, topic_id: TopicId, partition: int) -> OffsetEntry | None:
        """Return the committed offset of a partition; None if the partition has no committed offset."""
        entries = self._blocks.get((topic_id, partition // OFFSETS_PER_KEY))
        return None if entries is None else entries.get(partition)

    def items(self) -> Iterator[tuple[TopicId, OffsetEntry]]:
        """Yield all offsets, ordered by topic id and partition."""
        for (topic_id, _), entries in sorted(self._blocks.items()):
            for _, entry in sorted(entries.items()):
                yield topic_id, entry

    def matching(self, wanted: Callable[[TopicId, OffsetEntry], bool]) -> list[tuple[TopicId, int]]:
        """Return the partitions whose committed offset matches a predicate."""
        return [(topic_id, entry.partition) for topic_id, entry in self.items() if wanted(topic_id, entry)]

    def changed(self, entries: Entries) -> dict[Block, OffsetsRecord | None]:
        """Return the records that a change would write (None for a deleted record); the change is not applied yet."""
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
        """Apply records that have been written."""
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


class CommitChecks(Protocol):
    """Checks for commits from members of one protocol."""

    def check_commit(self, member_id: str | None, member_epoch: int, principal: str | None = None, /) -> None:
        """Raise a problem unless the caller may commit."""
        ...

    def check_committed_partition(
        self, member_id: str | None, topic_id: TopicId, partition: PartitionIndex, /
    ) -> None:
        """Raise a problem unless the member may commit an offset of the partition."""
        ...


class OffsetsAsked:
    """A request to commit, checked against the group and the topics."""

    def __init__(
        self,
        request: CommitRequest,
        group: CommitChecks,
        metadata: ClusterMetadata,
        now_us: TimestampUs,
        beyond: Mapping[TopicIdPartition, PositionFound],
        principal: str | None = None,
    ) -> None:
        """`beyond`: positions of the partitions whose offset lies above the high watermark.

        `principal`: caller to which the member must belong, or None if access rules are not enforced.
        """
        self._principal = principal
        self._request = request
        self._group = group
        self._metadata = metadata
        self._now_us = now_us
        self._results: list[CommitResult] = []
        self._beyond = beyond

    def admit(self) -> Entries:
        """Return the entries that may be stored.

        Raises a problem, which refuses the whole request, if the member is not allowed to commit.
        """
        self._check_member()
        self._results = []
        entries: dict[tuple[TopicId, int], OffsetEntry | None] = {}
        for each in self._request.offsets:
            result = CommitResult(topic=each.topic, topic_id=each.topic_id, partition=each.partition)
            try:
                key = self._checked(each)
                entries[key] = self._entry(each)
                self._results.append(msgspec.structs.replace(result, topic_id=key[0]))
            except ProblemError as problem:
                document = dict(problem.to_document())
                self._results.append(msgspec.structs.replace(result, problem=document))
        return entries

    def admit_all(self) -> Entries:
        """Return all entries. Raises a problem if the member is not allowed to commit one of the entries."""
        self._check_member()
        return {self._checked(each): self._entry(each) for each in self._request.offsets}

    def _check_member(self) -> None:
        self._group.check_commit(self._request.member_id, self._request.member_epoch, self._principal)

    def _checked(self, entry: OffsetCommit) -> tuple[TopicId, int]:
        """Return the partition of an entry that may be stored. Raises the problem of an invalid entry."""
        topic_id, partition = self._topic_id(entry), PartitionIndex(entry.partition)
        self._group.check_committed_partition(self._request.member_id, topic_id, partition)
        self._check_within(entry, TopicIdPartition(topic_id, partition))
        return topic_id, partition

    def answer(self) -> CommitAnswer:
        """Return the result of each entry according to the last check."""
        return CommitAnswer(offsets=self._results)

    def _topic_id(self, entry: OffsetCommit) -> TopicId:
        topic = self._metadata.topics.get(entry.topic)
        if topic is None:
            raise refusals.topic_not_found(entry.topic)
        topic_id = topic.value.topic_id
        if entry.topic_id is not None and entry.topic_id != topic_id:
            raise refusals.topic_recreated(entry.topic, entry.topic_id, topic_id)
        if entry.partition >= topic.value.partitions:
            raise refusals.partition_not_found(entry.topic, entry.partition, topic.value.partitions)
        return topic_id

    def _check_within(self, entry: OffsetCommit, key: TopicIdPartition) -> None:
        leader_has = self._beyond.get(key)
        if leader_has is not None:
            raise refusals.offset_out_of_range(
                entry.topic,
                entry.partition,
                Offset(entry.offset),
                leader_has.log_start,
                leader_has.high_watermark,
            )

    def _entry(self, entry: OffsetCommit) -> OffsetEntry:
        return OffsetEntry(
            partition=entry.partition,
            offset=Offset(entry.offset),
            leader_epoch=None if entry.leader_epoch is None else LeaderEpoch(entry.leader_epoch),
            metadata=entry.metadata,
            committed_us=self._now_us,
        )


def offsets_named(request: CommitRequest, metadata: ClusterMetadata) -> dict[TopicIdPartition, Offset]:
    """Return the offsets of a request by partition; topics that do not exist are left out."""
    return {
        TopicIdPartition(topic.value.topic_id, PartitionIndex(each.partition)): Offset(each.offset)
        for each in request.offsets
        if (topic := metadata.topics.get(each.topic)) is not None
    }


def committed(
    entries: Iterable[tuple[TopicId, OffsetEntry]], name_of: Callable[[TopicId], str | None]
) -> list[CommittedOffset]:
    """Return committed offsets by topic and partition, without topics that no longer exist.

    `name_of` returns the name of an existing topic.
    """
    found = (
        CommittedOffset(
            topic=name,
            topic_id=topic_id,
            partition=entry.partition,
            offset=entry.offset,
            leader_epoch=entry.leader_epoch,
            metadata=entry.metadata,
            committed_at=format_timestamp(entry.committed_us),
        )
        for topic_id, entry in entries
        if (name := name_of(topic_id)) is not None
    )
    return sorted(found, key=lambda each: (each.topic, each.partition))
