"""Messages between brokers about transactions: reports of commits, hints about changed records, and open transactions.

The messages are encoded by `messages`. The module must not know how an answer is used.
"""

from __future__ import annotations

import msgspec

from fairlead_api.identifiers import (
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampUs,
    TopicId,
)


class EndMessage(msgspec.Struct, frozen=True, array_like=True):
    """Commit whose marker must be written in a partition that the receiver leads."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    topic_id: TopicId
    partition: PartitionIndex
    decided_us: TimestampUs


class EndsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Commits that are final, so that the receiver may act on the message at any later time."""

    ends: list[EndMessage]


class EndsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether each marker is committed, in the order of the request."""

    confirmed: list[bool]


class LookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Hint that the records of some producers have changed."""

    producer_ids: list[ProducerId]


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the partitions in which a producer has open transactions."""

    producer_id: ProducerId


class OpenAt(msgspec.Struct, frozen=True, kw_only=True):
    """Open transaction in a partition that the answering broker leads."""

    topic_id: TopicId
    partition: PartitionIndex
    epoch: ProducerEpoch
    first_offset: Offset
    age_seconds: float


class OpenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions in which the producer has open transactions."""

    open_at: list[OpenAt]


class OpenProducersRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the producers, among those given, that have open transactions."""

    producer_ids: list[ProducerId]


class OpenProducersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Producers with a transaction that is open in a partition led by the answering broker."""

    producer_ids: list[ProducerId]
