"""Messages between brokers, as objects and as bytes.

Requests are JSON; the answer to a fetch is frames, the first one for the session, so that batches pass untouched.
Encoded by `peers`, decoded by the server's peer listener, and the other way round. Fields that a later release adds
are skipped. This module does not act on messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec

from fairlead_api.batch.header import Buffer
from fairlead_api.bodies.frames import encode_frame, iterate_frames
from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicIdPartition,
)
from fairlead_api.problems import ProblemError

PARTITIONS_MAX: Final = 100_000
"""Partitions of one message: more than any broker holds."""
NEW_SESSION: Final = 0

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
M = TypeVar("M", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class PeerIncarnation:
    """Sender of a request: a broker in one of its incarnations."""

    broker: BrokerId
    epoch: BrokerEpoch


class PeerPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that a message is about."""

    topic_id: TopicId
    partition: PartitionIndex

    @property
    def key(self) -> TopicIdPartition:
        """The partition as the rest of the broker calls it."""
        return TopicIdPartition(self.topic_id, self.partition)


class ReplicaFetchPartition(PeerPartition, frozen=True, kw_only=True):
    """Where a follower stands in one partition, and how much of it to send (protocol section 4, rule 8)."""

    generation: Count
    leader_epoch: Epoch
    last_epoch: LeaderEpoch | None = None
    """Leader epoch of its last record; None with an empty log."""
    fetch_offset: Offset
    synced_offset: Offset
    log_start: Offset
    max_bytes: Count
    damaged: bool = False
    """Whether the last received records failed their checksum: the leader then verifies its own copy."""
    deleted_epoch: LeaderEpoch | None = None
    """Leader epoch of the last record that was deleted, of a log without records; None where no such epoch is known."""


class ReplicaFetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A long poll of a follower over all partitions that it fetches from one leader (KIP-227).

    A new session (0) names every partition; a running one names the partitions that changed since the last request.
    """

    session: Count = NEW_SESSION
    sequence: Count = 0
    """Number of the request in its session; 0 begins it."""
    max_wait_ms: Count
    min_bytes: Count
    max_bytes: Count
    partitions: list[ReplicaFetchPartition] = []
    forgotten: list[PeerPartition] = []


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where the leader's records of an epoch end: the follower's log parts from the leader's there or before."""

    epoch: LeaderEpoch
    end_offset: Offset


class EpochBegin(msgspec.Struct, frozen=True, kw_only=True):
    """A leader epoch, and the offset at which it began in the leader's log."""

    epoch: LeaderEpoch
    start_offset: Offset


class ReplicaFetchResult(PeerPartition, frozen=True, kw_only=True, omit_defaults=True):
    """One partition of a fetch answer: data and offsets, or where the logs part, or the code of a problem."""

    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    high_watermark: Offset | None = None
    """None while the leader does not know it."""
    log_start: Offset = Offset(0)
    end_offset: Offset = Offset(0)
    """End of the leader's log, synced or not."""
    next_offset: Offset | None = None
    """Offset at which the log continues after an accepted loss from the requested offset to its end."""
    lost_epochs: Sequence[EpochBegin] = ()
    """Epochs of the lost records, the oldest first; sent together with `next_offset`."""
    diverging: Divergence | None = None
    problem: str | None = None
    """Code of the catalogue; `offset_out_of_range` comes with `log_start`, `end_offset` and `epoch_before`."""
    epoch_before: EpochBegin | None = None
    """Leader epoch of the record before the log start; None if the leader knows no such epoch."""
    data: Sequence[memoryview] = ()
    """Whole batches. A leader may give several pieces; a follower gets at most one, a view of the received body."""

    @property
    def nbytes(self) -> int:
        """Bytes of all batches."""
        return sum(map(len, self.data))


@dataclass(frozen=True, slots=True)
class ReplicaFetchAnswer:
    """Answer of a leader to a fetch: partitions with news, in a session of this number.

    A session of 0 means that the leader does not know the named session: the follower begins a new one.
    """

    session: int
    results: Sequence[ReplicaFetchResult]


class ProgressPartition(PeerPartition, frozen=True, kw_only=True):
    """Offset up to which a follower's log is synced."""

    generation: Count
    leader_epoch: Epoch
    synced_offset: Offset


class ProgressRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a follower has made durable since it last told; nothing is answered."""

    partitions: list[ProgressPartition]


class LogEndsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the ends of the logs of a broker's replicas."""

    partitions: list[PeerPartition]


class LogEnd(PeerPartition, frozen=True, kw_only=True):
    """Where a replica's log ends, and in which leader epoch its last record was written (None: it is empty)."""

    epoch: LeaderEpoch | None
    end_offset: Offset
    size_bytes: Count | None = None
    """Bytes of its batches; None from a release without this field."""


class LogEndsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of those logs that the broker holds."""

    ends: list[LogEnd]


class _AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """Meta of the first frame of a fetch answer."""

    session: Count


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as JSON."""
    return msgspec.json.encode(message)


def decode(message_type: type[M], body: Buffer) -> M:
    """Return the message in a body. Raises `malformed_request` saying which field is wrong."""
    try:
        return msgspec.json.decode(body, type=message_type)
    except msgspec.DecodeError as error:
        raise ProblemError("malformed_request", f"not a {message_type.__name__}: {error}") from error


def encode_answer(answer: ReplicaFetchAnswer) -> list[Buffer]:
    """Return a fetch answer in parts that follow one another; no batch is copied."""
    parts: list[Buffer] = encode_frame(_AnswerHead(session=answer.session))
    for result in answer.results:
        meta = msgspec.structs.replace(result, data=()) if result.data else result
        parts += encode_frame(meta, result.data)
    return parts


def decode_answer(body: Buffer) -> ReplicaFetchAnswer:
    """Return the fetch answer in a body, its data as views of that. Raises `malformed_request`."""
    frames = iterate_frames(body, PARTITIONS_MAX + 1)
    head = next(frames, None)
    if head is None:
        raise ProblemError("malformed_request", "a fetch answer begins with the frame of its session")
    session = decode(_AnswerHead, head.meta).session
    results = []
    for frame in frames:
        result = decode(ReplicaFetchResult, frame.meta)
        data = (frame.data,) if frame.data else ()
        results.append(msgspec.structs.replace(result, data=data))
    return ReplicaFetchAnswer(session, results)
