"""The values of the keys `transactions/<producer id>`: the newest transactions of one producer (rule 7.1).

Any broker may change a record, with a put that compares the revision at which the record was read. Records of
transactions are not mirrored. The module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from fairlead_api.identifiers import ProducerEpoch, TimestampUs, TopicId
from fairlead_broker.registry.records import Count, Entry, Positive, Record


class Outcome(StrEnum):
    """Decision about a transaction."""

    COMMIT = "commit"
    ABORT = "abort"


class EndReason(StrEnum):
    """Reason why a transaction ended."""

    CLIENT = "client"
    """The producer committed or aborted the transaction."""
    FENCED = "fenced"
    """Another instance with the same name began a transaction."""
    TIMEOUT = "timeout"
    """The transaction was open for longer than its timeout."""
    OPERATOR = "operator"
    RESTORED = "restored"
    """The coordination store was restored to a time before the transaction began."""


class EndedTransaction(Entry, frozen=True, kw_only=True):
    """Newest decided transaction of a producer."""

    epoch: ProducerEpoch
    outcome: Outcome
    reason: EndReason
    at_us: TimestampUs


class UnfinishedCommit(Entry, frozen=True, kw_only=True):
    """A committed transaction whose marker has not been confirmed in some partitions."""

    epoch: ProducerEpoch
    partitions: dict[TopicId, tuple[int, ...]]
    """Partitions without a confirmed marker, in ascending order."""


class PendingOffset(Entry, frozen=True, kw_only=True):
    """Offset of a group for one partition."""

    topic: str
    topic_id: TopicId
    partition: Count
    offset: Count
    leader_epoch: int | None
    metadata: str


class PendingOffsets(Entry, frozen=True, kw_only=True):
    """Offsets of a group that are stored if and only if the open transaction is committed."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {"offsets": PendingOffset}

    group: str
    member_id: str | None
    """Member that read up to the offsets, or None for a program that is not a member."""
    member_epoch: int
    offsets: tuple[PendingOffset, ...]


class KafkaSession(Entry, frozen=True, kw_only=True):
    """Successive transactions that a client of Kafka's protocol began under one epoch of its producer."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {"offsets": PendingOffsets}
    omitted_if_none: ClassVar[frozenset[str]] = frozenset({"previous"})

    epoch: ProducerEpoch
    """Epoch of the first transaction of the session, which an older client also states in all later transactions."""
    offsets: PendingOffsets | None = None
    """Offsets of the open transaction."""
    previous: ProducerEpoch | None = None
    """Epoch that the client stated as its own when it began the session, until the first transaction has ended."""


class TransactionRecord(Record, frozen=True, kw_only=True):
    """Value of `transactions/<producer id>`."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {
        "ended": EndedTransaction,
        "unfinished": UnfinishedCommit,
        "kafka": KafkaSession,
    }
    omitted_if_none: ClassVar[frozenset[str]] = frozenset({"kafka"})

    name: str | None = None
    """Name of the producer, or None for a producer without a name."""
    epoch: ProducerEpoch
    """Epoch of the only transaction that can be committed. The transactions of all lower epochs are decided."""
    timeout_ms: Positive
    ended: EndedTransaction | None = None
    """The newest decided transaction, or None before the first decision."""
    named: dict[TopicId, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Partitions that produce requests have named for the open transaction, in ascending order."""
    unfinished: tuple[UnfinishedCommit, ...] = ()
    """Unfinished commits in ascending order of epochs."""
    metadata: str | None = None
    """Text that the client passed to the last commit."""
    owner: str | None = None
    """Principal that began the producer's first transaction, or None if it was not authenticated."""
    used_us: TimestampUs
    """Time of the last change by a client."""
    kafka: KafkaSession | None = None
    """Session of a client of Kafka's protocol, until the client is fenced or one of its transactions is aborted
    without its request."""
