"""Plan a cleaning round for one log: whether a round is due, which segments it reads, and which facts it needs.

The runtime calls this module in a disk thread, since the age of segments is read from their files. The rules are in
`compaction/cleanable.py`. The module must not know which replica is the leader or which limits apply in the cluster:
offsets and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.compaction.cleanable import (
    CleanableRange,
    CleanableSegment,
    CleaningRules,
    Due,
    cleanable_range,
    due_round,
)
from fairlead_broker.compaction.fates import RoundFacts
from fairlead_broker.log.cleaning.rounds import CleaningOrder, LostRange, SegmentRange
from fairlead_broker.log.errors import StorageFailed
from fairlead_broker.log.partition_log import PartitionLog
from fairlead_broker.log.segments.batch_walk import first_append_time
from fairlead_broker.log.segments.damage import DamagedRange, ranges_within
from fairlead_broker.log.segments.indexes import NO_TIME
from fairlead_broker.log.segments.segments import Segment

_MILLISECOND_US: Final = 1000


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A cleanable range, and whether its cleaning round is due."""

    range: CleanableRange
    due: Due | None
    oldest_dirty_us: int | None
    """Append time of the oldest batch that no round has cleaned."""
    generation: int
    """Number of truncations of the log when the round was planned."""


def rules_of(config: TopicConfig) -> CleaningRules:
    """Return the settings of a topic that decide when it is cleaned."""
    return CleaningRules(
        float(config.min_cleanable_dirty_ratio),
        config.min_compaction_lag_ms * _MILLISECOND_US,
        config.max_compaction_lag_ms * _MILLISECOND_US,
        config.delete_retention_ms * _MILLISECOND_US,
    )


def plan_round(log: PartitionLog, stable_offset: Offset, now_us: TimestampUs) -> PlannedRound:
    """Return the cleanable range of a log and whether a round is due. Raises `StorageFailed`.

    `stable_offset`: offset below which, as far as this replica knows, every record is committed and every transaction
    has ended.
    """
    rules, state, generation = rules_of(log.config), log.cleaning, log.generation
    damage = (each.first_offset for each in log.damaged if not each.accepted)
    limit = min(stable_offset, log.synced_offset, *damage)
    segments = log.segments
    try:
        found = cleanable_range(
            [_facts(each) for each in segments], state.cleaned, limit, rules.min_lag_us, now_us
        )
        oldest = _oldest_dirty(segments, state.cleaned) if found.dirty_bytes else None
    except OSError as error:
        message = f"{log.folder}: cannot read the age of the segments: {error.strerror or error}"
        raise StorageFailed(message) from error
    return PlannedRound(found, due_round(found, state, rules, oldest, now_us), oldest, generation)


def cleaning_order(
    log: PartitionLog,
    planned: PlannedRound,
    *,
    removal_limit: Offset,
    now_us: TimestampUs,
    buffer_bytes: int,
    seed: bytes,
) -> CleaningOrder:
    """Return the order for a planned round. The call may wait for the disk.

    Raises `StorageFailed`, and `LogDamaged` if the batches of a segment do not end where an accepted loss begins.
    """
    log.load_aborted()
    until, config = planned.range.until, log.config
    batches, keys, markers = log.remembered_batches()
    damaged = log.damaged
    return CleaningOrder(
        folder=str(log.folder),
        segments=tuple(
            SegmentRange(each.base_offset, each.next_offset, each.size, _lost_in(each, damaged))
            for each in log.segments
            if each.next_offset <= until and not each.growing
        ),
        map_from=Offset(log.cleaning.cleaned),
        segment_bytes=config.segment_bytes,
        index_interval_bytes=config.index_interval_bytes,
        buffer_bytes=buffer_bytes,
        seed=seed,
        facts=RoundFacts(
            now_us=now_us,
            delete_retention_us=rules_of(config).delete_retention_us,
            removal_limit=removal_limit,
            aborted=tuple(
                (each.producer_id, each.first_offset, each.marker_offset)
                for each in log.producers.aborted.all()
                if each.first_offset < until
            ),
            producer_batches=frozenset(each for each in batches if each < until),
            keyed_batches=frozenset(each for each in keys if each < until),
            last_markers=frozenset(markers),
            batch_bytes_max=config.max_message_bytes,
        ),
    )


def _lost_in(segment: Segment, damaged: Sequence[DamagedRange]) -> tuple[LostRange, ...]:
    """Return the ranges of a segment whose loss was accepted."""
    return tuple(
        LostRange(each.first_offset, each.next_good_offset, segment.position_after_loss(each))
        for each in ranges_within(damaged, segment.base_offset, segment.next_offset)
    )


def _facts(segment: Segment) -> CleanableSegment:
    newest_us = segment.max_time_us()
    return CleanableSegment(
        segment.base_offset,
        segment.next_offset,
        segment.size,
        None if newest_us == NO_TIME else newest_us,
        segment.growing,
    )


def _oldest_dirty(segments: tuple[Segment, ...], cleaned: int) -> int | None:
    for segment in segments:
        if segment.next_offset > cleaned and segment.size:
            body = segment.load()
            return first_append_time(body.file, body.size)
    return None
