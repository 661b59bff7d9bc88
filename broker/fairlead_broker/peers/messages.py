"""Messages between brokers, as objects and as bytes.

Requests are JSON. The answer to a fetch consists of frames. The first frame describes the session, and batches are sent
unchanged. Messages are encoded by `peers` and decoded by the server's peer listener, and vice versa. Fields that a
later release adds are ignored. This module only defines and encodes messages.
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
"""Maximum number of partitions in one message, which is more than any broker has."""
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
    """A partition as the subject of a message."""

    topic_id: TopicId
    partition: PartitionIndex

    @property
    def key(self) -> TopicIdPartition:
        """Key of the partition, as used in the rest of the broker."""
        return TopicIdPartition(self.topic_id, self.partition)


class ReplicaFetchPartition(PeerPartition, frozen=True, kw_only=True):
    """Fetch offset of a follower in one partition, and a limit on the bytes to send (protocol section 4, rule 8)."""

    generation: Count
    leader_epoch: Epoch
    last_epoch: LeaderEpoch | None = None
    """Leader epoch of the follower's last record; None if the follower's log is empty."""
    fetch_offset: Offset
    synced_offset: Offset
    log_start: Offset
    max_bytes: Count
    damaged: bool = False
    """Whether the last received records failed their checksum, in which case the leader verifies its own copy."""
    deleted_epoch: LeaderEpoch | None = None
    """Leader epoch of the last deleted record of a log without records; None if no such epoch is known."""


class ReplicaFetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A follower's long poll for all partitions that it fetches from one leader (KIP-227).

    The first request of a session names every partition. A later request names the partitions that changed since the
    previous request.
    """

    session: Count = NEW_SESSION
    sequence: Count = 0
    """Sequence number of the request in its session; 0 starts a session."""
    max_wait_ms: Count
    min_bytes: Count
    max_bytes: Count
    partitions: list[ReplicaFetchPartition] = []
    forgotten: list[PeerPartition] = []


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """End of an epoch in the leader's log.

    The follower's log diverges from the leader's log at this offset or earlier.
    """

    epoch: LeaderEpoch
    end_offset: Offset


class EpochBegin(msgspec.Struct, frozen=True, kw_only=True):
    """A leader epoch, and its first offset in the leader's log."""

    epoch: LeaderEpoch
    start_offset: Offset


class ReplicaFetchResult(PeerPartition, frozen=True, kw_only=True, omit_defaults=True):
    """One partition of a fetch answer: data and offsets, a divergence, or the code of a problem."""

    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    high_watermark: Offset | None = None
    """High watermark of the leader; None while it is unknown."""
    log_start: Offset = Offset(0)
    end_offset: Offset = Offset(0)
    """End offset of the leader's log, including unsynced records."""
    next_offset: Offset | None = None
    """Offset at which the leader's log continues after an accepted loss that begins at the fetch offset; None if there
    is no such loss."""
    lost_epochs: Sequence[EpochBegin] = ()
    """Epochs of the lost records, oldest first. The epochs are sent together with `next_offset`."""
    diverging: Divergence | None = None
    problem: str | None = None
    """Code from the problem catalogue; `offset_out_of_range` is sent with `log_start`, `end_offset` and
    `epoch_before`."""
    epoch_before: EpochBegin | None = None
    """Leader epoch of the record before the log start; None if the leader knows no such epoch."""
    removed: Offset = Offset(0)
    """Offset below which the leader's log may lack tombstones and markers."""
    deleted_to: Offset = Offset(0)
    """Offset below which the leader's records were deleted on request."""
    data: Sequence[memoryview] = ()
    """Whole batches. A leader may pass the batches in several pieces. A follower receives at most one piece, a
    memoryview of the body.
    """

    @property
    def nbytes(self) -> int:
        """Number of bytes in all batches."""
        return sum(map(len, self.data))


@dataclass(frozen=True, slots=True)
class ReplicaFetchAnswer:
    """A leader's answer to a fetch: partitions with changes, and the number of the session.

    The session number 0 means that the leader does not know the follower's session, and the follower must begin a new
    session.
    """

    session: int
    results: Sequence[ReplicaFetchResult]


class ProgressPartition(PeerPartition, frozen=True, kw_only=True):
    """Synced offset of a follower's log in one partition."""

    generation: Count
    leader_epoch: Epoch
    synced_offset: Offset


class ProgressRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Report of the offsets that a follower has made durable since its last report.

    The answer to the report is empty.
    """

    partitions: list[ProgressPartition]


class LogEndsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for the log ends of a broker's replicas."""

    partitions: list[PeerPartition]


class LogEnd(PeerPartition, frozen=True, kw_only=True):
    """End offset of a replica's log, and the leader epoch of its last record; None for an empty log."""

    epoch: LeaderEpoch | None
    end_offset: Offset
    size_bytes: Count | None = None
    """Number of bytes in the log's batches; None if the answer is from a release without this field."""


class LogEndsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Ends of the requested logs that the broker has."""

    ends: list[LogEnd]


class _AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of the first frame of a fetch answer."""

    session: Count


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as JSON."""
    return msgspec.json.encode(message)


def decode(message_type: type[M], body: Buffer) -> M:
    """Decode the message in a body. Raises `malformed_request`, which names the invalid field."""
    try:
        return msgspec.json.decode(body, type=message_type)
    except msgspec.DecodeError as error:
        raise ProblemError("malformed_request", f"not a {message_type.__name__}: {error}") from error


def encode_answer(answer: ReplicaFetchAnswer) -> list[Buffer]:
    """Return a fetch answer as consecutive buffers, without copying a batch."""
    parts: list[Buffer] = encode_frame(_AnswerHead(session=answer.session))
    for result in answer.results:
        meta = msgspec.structs.replace(result, data=()) if result.data else result
        parts += encode_frame(meta, result.data)
    return parts


def decode_answer(body: Buffer) -> ReplicaFetchAnswer:
    """Decode the fetch answer in a body. The batches are memoryviews of the body. Raises `malformed_request`."""
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
