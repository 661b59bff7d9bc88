"""Answers to the calls about the cleaning of a compacted topic's partitions.

The broker, the SDK and the CLI use these bodies for the calls in `routes.operations`, and brokers exchange the state of
one replica. This module contains only types.
"""

from __future__ import annotations

from typing import Literal

from fairlead_api.bodies.metadata import Answer

CleaningOutcome = Literal["done", "abandoned", "damaged", "failed", "no_space"]
ReplicaCleaningState = Literal["held", "off", "no_answer", "not_held", "unreadable"]


class CleaningRound(Answer, frozen=True, kw_only=True):
    """How a round of cleaning ended.

    `done`: every segment of the range was replaced. `abandoned`: the log changed during the round. `damaged`: stored
    bytes have changed. `failed`: the disk or the process failed. `no_space`: the volume has too little free space.
    """

    ended_at: str
    outcome: CleaningOutcome
    kept_records: int = 0
    dropped_records: int = 0


class ReplicaCleaning(Answer, frozen=True, kw_only=True):
    """State of the cleaning of one replica.

    `held`: the fields describe the replica. `off`: the fields describe the replica, but the cleaner of the replica's
    broker is turned off. `no_answer`: the replica's broker does not answer. `not_held`: the broker has no open replica.
    `unreadable`: the disk cannot be read. `detail` contains further information.
    """

    broker: int
    state: ReplicaCleaningState
    log_end_offset: int | None = None
    cleaned_offset: int | None = None
    """Offset below which rounds have cleaned the replica."""
    removed_offset: int | None = None
    """Offset below which tombstones and markers may be missing."""
    dirty_bytes: int | None = None
    """Size of the segments that the next round would clean for the first time."""
    dirty_ratio: float | None = None
    """Ratio of `dirty_bytes` to the size of all segments that the next round would read."""
    requested_offset: int | None = None
    """Offset up to which `:clean` has requested rounds; null without a pending request."""
    last_round: CleaningRound | None = None
    """Last round since the start of the replica's broker."""
    detail: str | None = None


class PartitionCleaning(Answer, frozen=True, kw_only=True):
    """Cleaning of the replicas of a partition."""

    topic: str
    topic_id: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[ReplicaCleaning]
