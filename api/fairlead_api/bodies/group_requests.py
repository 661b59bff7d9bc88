"""JSON requests sent by members and operators of consumer groups.

The broker decodes the requests with `json_bodies.decode_request`; the SDK and the CLI build the requests. A request
object satisfies every rule that can be checked without knowing the group. The coordinator checks the other rules, for
example whether a pattern is an RE2 expression. This module must not depend on existing groups.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, Literal, NoReturn

from msgspec import UNSET, Meta, UnsetType
from msgspec.json import Decoder

from fairlead_api.bodies.json_bodies import ArrayDecoders, Request, decode_divided, decode_request
from fairlead_api.bodies.json_slices import WHOLE_BYTES_MAX
from fairlead_api.bodies.requests import (
    INT32_MAX,
    INT64_MAX,
    PARTITIONS_MAX,
    EpochNumber,
    OffsetNumber,
    PartitionNumber,
    TopicIdText,
)
from fairlead_api.excerpts import excerpt, shown
from fairlead_api.identifiers import check_group_name, check_topic_name
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import parse_timestamp_us

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

SESSION_TIMEOUT_MS_DEFAULT: Final = 45_000
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 1_800_000
REBALANCE_TIMEOUT_MS_DEFAULT: Final = 300_000
REBALANCE_TIMEOUT_MS_MIN: Final = 1_000
REBALANCE_TIMEOUT_MS_MAX: Final = 3_600_000
HEARTBEAT_INTERVAL_MS_MAX: Final = 5_000
"""Maximum recommended interval of heartbeats; a third of the session timeout is recommended if that is shorter."""
ASSIGNORS: Final = ("uniform", "range")
"""Strategies for distributing partitions: `uniform`, the default, distributes the partitions of all topics together;
`range` distributes topic by topic."""
NO_MEMBER_EPOCH: Final = -1
"""Epoch of a commit by a program that is not a member of the group."""
SUBSCRIBED_TOPICS_MAX: Final = 1_000
"""Maximum number of topics that a member names, since the member's record contains all names; a pattern may match more
topics."""
PATTERN_CHARACTERS_MAX: Final = 1_000
METADATA_BYTES_MAX: Final = 256
"""Maximum size of the metadata of a committed offset in bytes of UTF-8."""
RACK_CHARACTERS_MAX: Final = 255

_DURATION: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION_ALLOWED: Final = (
    "milliseconds as an integer, or a number with its unit (ms, s, m, h, d) such as 10m"
)

SessionTimeout = Annotated[int, Meta(ge=SESSION_TIMEOUT_MS_MIN, le=SESSION_TIMEOUT_MS_MAX)]
RebalanceTimeout = Annotated[int, Meta(ge=REBALANCE_TIMEOUT_MS_MIN, le=REBALANCE_TIMEOUT_MS_MAX)]
Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARACTERS_MAX)]
Rack = Annotated[str, Meta(min_length=1, max_length=RACK_CHARACTERS_MAX)]


class OwnedPartitions(Request, frozen=True, kw_only=True):
    """Partitions of one topic that a member still processes."""

    topic_id: TopicIdText
    partitions: Annotated[tuple[PartitionNumber, ...], Meta(max_length=PARTITIONS_MAX)]


class HeartbeatRequest(Request, frozen=True, kw_only=True):
    """Body of `PUT /v1/groups/{group}/members/{member}`: a join if `member_epoch` is 0, otherwise a heartbeat.

    A join sets every field: absent fields have their defaults, regardless of earlier requests with this member id or
    instance id. A heartbeat contains only changed fields: an absent field is unchanged, and null resets a field to its
    default (no topics, no pattern, no rack, the group's assignor, the default timeout). The instance id cannot change
    after the join. `topic_pattern` is an RE2 expression for whole names; internal topics, whose names begin with `__`,
    need an expression that begins with `__`. `owned` lists the partitions of all topics that the member still
    processes; a member sends `owned` when these partitions have changed.
    """

    member_epoch: EpochNumber
    topics: Annotated[tuple[str, ...], Meta(max_length=SUBSCRIBED_TOPICS_MAX)] | UnsetType | None = UNSET
    topic_pattern: Pattern | UnsetType | None = UNSET
    instance_id: str | UnsetType | None = UNSET
    rack: Rack | UnsetType | None = UNSET
    assignor: str | UnsetType | None = UNSET
    session_timeout_ms: SessionTimeout | UnsetType | None = UNSET
    rebalance_timeout_ms: RebalanceTimeout | UnsetType | None = UNSET
    owned: Annotated[tuple[OwnedPartitions, ...], Meta(max_length=PARTITIONS_MAX)] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Raise the problem of the first invalid field."""
        for name in self.topics or ():
            check_topic_name(name)
        if self.instance_id:
            check_group_name(self.instance_id)
        elif self.instance_id == "":
            _refuse("instance_id", "", "a name, or null")
        if self.assignor not in (None, UNSET, *ASSIGNORS):
            _refuse("assignor", self.assignor, f"one of {', '.join(ASSIGNORS)}")
        if self.owned:
            _refuse_repeated("owned", (owned.topic_id for owned in self.owned))
        if self.joins:
            self._check_join()

    @property
    def joins(self) -> bool:
        """Whether the request is a join. The coordinator's answer to a join contains the member epoch."""
        return self.member_epoch == 0

    def _check_join(self) -> None:
        if not self.topics and not self.topic_pattern:
            _refuse("topics", excerpt(self.topics or None), "topic names, or topic_pattern, in a join")
        if self.owned:
            _refuse("owned", "an array", "no partitions in a join, since a joining member owns none")


class OffsetCommit(Request, frozen=True, kw_only=True):
    """Commit for one partition: the next `offset` to read, and the `leader_epoch` of the last record read."""

    topic: str
    topic_id: TopicIdText | None = None
    partition: PartitionNumber
    offset: OffsetNumber
    leader_epoch: EpochNumber | None = None
    metadata: str = ""

    def __post_init__(self) -> None:
        """Raise `invalid_topic_name` for a bad name, and `malformed_request` for more than 256 bytes of metadata."""
        check_topic_name(self.topic)
        # Lone surrogates cannot occur in UTF-8 JSON, but a caller of the SDK may pass text with lone surrogates.
        if len(self.metadata.encode("utf-8", "surrogatepass")) > METADATA_BYTES_MAX:
            _refuse("metadata", self.metadata, f"at most {METADATA_BYTES_MAX} bytes of UTF-8")


class CommitRequest(Request, frozen=True, kw_only=True):
    """Body of `PUT /v1/groups/{group}/offsets`: a commit; a member sends its id and epoch."""

    member_id: str | None = None
    member_epoch: Annotated[int, Meta(ge=NO_MEMBER_EPOCH, le=INT32_MAX)] = NO_MEMBER_EPOCH
    offsets: Annotated[tuple[OffsetCommit, ...], Meta(min_length=1, max_length=PARTITIONS_MAX)]

    def __post_init__(self) -> None:
        """Raise `invalid_group_name` for an invalid member id, and `malformed_request` for only one of id and epoch."""
        if self.member_id:
            check_group_name(self.member_id)
        elif self.member_id == "":
            _refuse("member_id", "", "the id of a member, or null for programs that are not members")
        if (self.member_id is None) != (self.member_epoch == NO_MEMBER_EPOCH):
            _refuse(
                "member_epoch",
                self.member_epoch,
                "the epoch of the member with member_id, or -1 without member_id for programs that are not members",
            )
        _refuse_repeated("offsets", ((entry.topic, entry.partition) for entry in self.offsets))


class _CommitFrame(Request, frozen=True, kw_only=True):
    """Body of a commit request whose list of offsets is parsed separately."""

    member_id: str | None = None
    member_epoch: Annotated[int, Meta(ge=NO_MEMBER_EPOCH, le=INT32_MAX)] = NO_MEMBER_EPOCH
    offsets: list[OffsetCommit]


_COMMIT: Final = ArrayDecoders(Decoder(list[OffsetCommit]), Decoder[object](_CommitFrame), "offsets")


def decode_commit(body: bytes) -> CommitRequest:
    """Return the body of a commit. If a key is repeated, its last value is used.

    A large body is decoded in slices, none of which holds the interpreter lock for long. Raises the problems of
    `decode_request` and, for a large body, of `decode_slices`.
    """
    if len(body) <= WHOLE_BYTES_MAX:
        return decode_request(CommitRequest, body, unique_keys=False)
    frame, slices = decode_divided(_COMMIT, body)
    assert isinstance(frame, _CommitFrame)
    offsets: list[OffsetCommit] = []
    for each in slices:
        offsets += each
        if len(offsets) > PARTITIONS_MAX:
            _refuse("offsets", f"more than {PARTITIONS_MAX} offsets", f"1 to {PARTITIONS_MAX} offsets")
    if not offsets:
        _refuse("offsets", "no offsets", f"1 to {PARTITIONS_MAX} offsets")
    return CommitRequest(member_id=frame.member_id, member_epoch=frame.member_epoch, offsets=tuple(offsets))


class ResetTarget(Request, frozen=True, kw_only=True):
    """Target position of a reset, as an object with exactly one field.

    `timestamp` (ms or RFC 3339): the first record at or after the time. `duration` (ms, or text such as "10m"): the
    first record that is at most this old. `shift`: number of records to move forward, or backward if negative.
    `offset`: the offset itself.
    """

    timestamp: int | str | UnsetType = UNSET
    duration: int | str | UnsetType = UNSET
    shift: Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)] | UnsetType = UNSET
    offset: OffsetNumber | UnsetType = UNSET


class ResetKind(StrEnum):
    """Kind of a reset position, which determines the meaning of the position's number."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    """Microseconds since the Unix epoch."""
    DURATION = "duration"
    """Microseconds before now."""
    SHIFT = "shift"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class ResetPosition:
    """Target position of a reset; `number` is 0 for the start and the end of the log."""

    kind: ResetKind
    number: int = 0


class ResetPartition(Request, frozen=True, kw_only=True):
    """Partitions of a topic whose offsets are reset: one in `partition`, or several in `partitions`."""

    topic: str
    topic_id: TopicIdText | None = None
    partition: PartitionNumber | UnsetType = UNSET
    partitions: (
        Annotated[tuple[PartitionNumber, ...], Meta(min_length=1, max_length=PARTITIONS_MAX)] | UnsetType
    ) = UNSET

    def __post_init__(self) -> None:
        """Raise `invalid_topic_name` for a bad name, and `malformed_request` unless exactly one field is set."""
        check_topic_name(self.topic)
        if (self.partition is UNSET) == (self.partitions is UNSET):
            both = self.partition is not UNSET
            _refuse(
                "topics",
                f"{self.topic} with {'partition and partitions' if both else 'neither partition nor partitions'}",
                "either partition or partitions; for all partitions, only the name of the topic",
            )

    @property
    def numbers(self) -> tuple[int, ...]:
        """Indexes of the partitions."""
        return (self.partition,) if self.partition is not UNSET else self.partitions or ()


class ResetRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/groups/{group}/offsets:reset`: a position, and names of topics or individual partitions.

    Without `topics`, the committed offsets of all partitions of the group are reset. If a topic is given by name only,
    all its partitions are reset, including partitions without a committed offset.
    """

    to: Literal["earliest", "latest"] | ResetTarget
    topics: (
        Annotated[tuple[str | ResetPartition, ...], Meta(min_length=1, max_length=PARTITIONS_MAX)] | None
    ) = None

    def __post_init__(self) -> None:
        """Raise `invalid_topic_name` for a bad name, `malformed_request` for a bad position or repeated partition."""
        _ = self.position
        for topic in self.topics or ():
            if isinstance(topic, str):
                check_topic_name(topic)
        _refuse_repeated("topics", self._places())

    def _places(self) -> Iterator[Hashable]:
        for topic in self.topics or ():
            if isinstance(topic, str):
                yield topic
            else:
                yield from ((topic.topic, number) for number in topic.numbers)

    @property
    def position(self) -> ResetPosition:
        """Target position of the reset."""
        if isinstance(self.to, str):
            return ResetPosition(ResetKind(self.to))
        given = {
            kind: value
            for kind in (ResetKind.TIMESTAMP, ResetKind.DURATION, ResetKind.SHIFT, ResetKind.OFFSET)
            if (value := getattr(self.to, kind.value)) is not UNSET
        }
        if len(given) != 1:
            _refuse("to", ", ".join(given), "exactly one of timestamp, duration, shift, offset")
        ((kind, value),) = given.items()
        if kind is ResetKind.TIMESTAMP:
            return ResetPosition(kind, parse_timestamp_us(value, "to.timestamp"))
        if kind is ResetKind.DURATION:
            return ResetPosition(kind, _duration_us(value))
        return ResetPosition(kind, value)


def heartbeat_interval_ms(session_timeout_ms: int) -> int:
    """Return the recommended interval of heartbeats for a session timeout, in milliseconds."""
    return min(HEARTBEAT_INTERVAL_MS_MAX, session_timeout_ms // 3)


def _duration_us(value: int | str) -> int:
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            _refuse("to.duration", value, _DURATION_ALLOWED)
        value = int(match[1]) * _UNIT_MS[match[2]]
    if not 0 <= value <= INT64_MAX // 1000:
        _refuse("to.duration", value, _DURATION_ALLOWED)
    return value * 1000


def _refuse_repeated(parameter: str, keys: Iterable[Hashable]) -> None:
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            text = "-".join(map(str, key)) if isinstance(key, tuple) else str(key)
            _refuse(parameter, text, "each once")
        seen.add(key)


def _refuse(parameter: str, value: object, allowed: str) -> NoReturn:
    raise ProblemError(
        "malformed_request",
        f"{parameter} {shown(value)} is not allowed; expected {allowed}",
        data={"parameter": parameter, "value": excerpt(value), "allowed": allowed},
    )
