"""Lag of groups and targets of resets: committed offsets compared with positions reported by leaders.

Used by `groups` and `upkeep`. The module computes values only, without requests or writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from fairlead_api.bodies.group_answers import LagAnswer, PartitionLag, ResetOffset
from fairlead_api.bodies.group_requests import ResetKind, ResetPosition, ResetRequest
from fairlead_api.bodies.requests import READ_COMMITTED, Isolation
from fairlead_api.identifiers import Offset, PartitionIndex, TimestampUs, TopicId, TopicIdPartition
from fairlead_broker.peers.positions import PositionAsked, PositionFound
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.groups.coordinated_group import CoordinatedGroup
from fairlead_broker.runtime.groups.offsets import CommittedOffsets


def partitions_of(coordinated: CoordinatedGroup, metadata: ClusterMetadata) -> list[TopicIdPartition]:
    """Return the partitions of a group: partitions of its topics, and partitions with committed offsets."""
    found = {
        TopicIdPartition(topic_id, PartitionIndex(entry.partition))
        for topic_id, entry in coordinated.offsets.items()
        if metadata.topic_by_id(topic_id) is not None
    }
    topics = {name for member in coordinated.group.members.values() for name in member.topics}
    for topic in map(metadata.topics.get, topics):
        if topic is not None:
            found.update(_all_of(topic.value.topic_id, topic.value.partitions))
    return sorted(found, key=lambda key: (metadata.topic_name(key.topic_id) or "", key.partition))


def lag_asked(coordinated: CoordinatedGroup, partitions: Sequence[TopicIdPartition]) -> list[PositionAsked]:
    """Return the positions to request from leaders to compute the lag of a group."""
    return [
        PositionAsked(
            topic_id=key.topic_id,
            partition=key.partition,
            offset=None if entry is None else entry.offset,
            from_start=entry is None,
        )
        for key in partitions
        for entry in (coordinated.offsets.get(key.topic_id, key.partition),)
    ]


def lag_answer(
    coordinated: CoordinatedGroup,
    found: Sequence[PositionFound],
    metadata: ClusterMetadata,
    now_us: TimestampUs,
    isolation: Isolation = "read_uncommitted",
) -> LagAnswer:
    """Return the lag of a group from the reported positions of its partitions.

    With `read_committed`, the lag ends at the last stable offset of each partition.
    """
    lag = [_partition_lag(coordinated, each, metadata, now_us, isolation) for each in found]
    return LagAnswer(
        group=coordinated.name,
        lag=lag,
        total_records=sum(each.lag_records or 0 for each in lag),
        max_seconds=max((each.lag_seconds or 0.0 for each in lag), default=0.0),
    )


def _partition_lag(
    coordinated: CoordinatedGroup,
    found: PositionFound,
    metadata: ClusterMetadata,
    now_us: TimestampUs,
    isolation: Isolation,
) -> PartitionLag:
    entry = coordinated.offsets.get(found.topic_id, found.partition)
    records: int | None = None
    seconds: float | None = None
    if found.problem is None:
        at = max(found.log_start, entry.offset) if entry else found.log_start
        end = found.high_watermark
        if isolation == READ_COMMITTED and found.last_stable_offset is not None:
            end = found.last_stable_offset
        records = max(0, end - at)
        seconds = 0.0
        if records and found.append_time_us is not None:
            seconds = max(0, now_us - found.append_time_us) / 1e6
    return PartitionLag(
        topic=metadata.topic_name(found.topic_id) or "",
        topic_id=found.topic_id,
        partition=found.partition,
        committed_offset=entry.offset if entry else None,
        high_watermark=None if found.problem else found.high_watermark,
        lag_records=records,
        lag_seconds=seconds,
        member_id=coordinated.group.owner(found.topic_id, found.partition),
        problem=found.problem or UNSET,
    )


def reset_partitions(
    stands: CommittedOffsets, request: ResetRequest, metadata: ClusterMetadata
) -> list[TopicIdPartition]:
    """Return the partitions of a reset. Raises `topic_not_found`, `topic_recreated` or `partition_not_found`."""
    if request.topics is None:
        return [
            TopicIdPartition(topic_id, PartitionIndex(entry.partition))
            for topic_id, entry in stands.items()
            if metadata.topic_by_id(topic_id) is not None
        ]
    found: dict[TopicIdPartition, None] = {}
    for each in request.topics:
        name = each if isinstance(each, str) else each.topic
        topic = metadata.topics.get(name)
        if topic is None:
            raise refusals.topic_not_found(name)
        topic_id, count = topic.value.topic_id, topic.value.partitions
        if isinstance(each, str):
            found.update(dict.fromkeys(_all_of(topic_id, count)))
            continue
        if each.topic_id is not None and each.topic_id != topic_id:
            raise refusals.topic_recreated(name, each.topic_id, topic_id)
        for number in each.numbers:
            if number >= count:
                raise refusals.partition_not_found(name, number, count)
            found[TopicIdPartition(topic_id, PartitionIndex(number))] = None
    return list(found)


def reset_asked(
    partitions: Sequence[TopicIdPartition], position: ResetPosition, now_us: TimestampUs
) -> list[PositionAsked]:
    """Return the positions to request from leaders for a reset."""
    since: int | None = None
    if position.kind is ResetKind.TIMESTAMP:
        since = position.number
    elif position.kind is ResetKind.DURATION:
        since = max(0, now_us - position.number)
    return [
        PositionAsked(
            topic_id=key.topic_id,
            partition=key.partition,
            timestamp_us=None if since is None else TimestampUs(since),
        )
        for key in partitions
    ]


def reset_offsets(
    stands: CommittedOffsets,
    position: ResetPosition,
    found: Sequence[PositionFound],
    metadata: ClusterMetadata,
) -> list[ResetOffset]:
    """Return the target offset of each partition, or a problem if the partition cannot be reset."""
    return [_reset(stands, position, each, metadata) for each in found]


def _reset(
    stands: CommittedOffsets, position: ResetPosition, found: PositionFound, metadata: ClusterMetadata
) -> ResetOffset:
    entry = stands.get(found.topic_id, found.partition)
    before = None if entry is None else entry.offset
    name = metadata.topic_name(found.topic_id) or ""
    problem, after = found.problem, None
    if problem is None:
        after = _destination(position, found, before)
        if not found.log_start <= after <= found.high_watermark:
            refusal = refusals.offset_out_of_range(
                name, found.partition, Offset(after), found.log_start, found.high_watermark
            )
            problem, after = dict(refusal.to_document()), None
    return ResetOffset(
        topic=name,
        topic_id=found.topic_id,
        partition=found.partition,
        before=before,
        after=after,
        problem=problem or UNSET,
    )


def _destination(position: ResetPosition, found: PositionFound, before: Offset | None) -> int:
    match position.kind:
        case ResetKind.EARLIEST:
            return found.log_start
        case ResetKind.LATEST:
            return found.high_watermark
        case ResetKind.TIMESTAMP | ResetKind.DURATION:
            return found.high_watermark if found.found_offset is None else found.found_offset
        case ResetKind.SHIFT:
            # If a partition has no committed offset, the shift is counted from the log start.
            shifted = (found.log_start if before is None else before) + position.number
            return min(max(shifted, found.log_start), found.high_watermark)
        case ResetKind.OFFSET:
            return position.number


def _all_of(topic_id: TopicId, partitions: int) -> Iterator[TopicIdPartition]:
    return (TopicIdPartition(topic_id, PartitionIndex(index)) for index in range(partitions))
