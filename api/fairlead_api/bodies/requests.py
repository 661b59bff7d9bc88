"""What callers send as JSON, and what produce and offset calls answer, field by field.

Decoded by the server through `json_bodies.decode_request`, built by SDK and CLI. A request that exists as an
object obeys every rule that can be checked without knowing the cluster. Must not know topics that exist.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead_api.bodies.json_bodies import Request, decode_request
from fairlead_api.bodies.metadata import Answer
from fairlead_api.configuration import ConfigInput
from fairlead_api.identifiers import check_topic_name
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import parse_timestamp_us
from fairlead_api.versions import check_batch_formats

__all__ = [
    "AcceptDamageAnswer",
    "AcceptDamageRequest",
    "AlterConfigRequest",
    "AlterTopicRequest",
    "CreateTopicRequest",
    "DeleteRecordsAnswer",
    "DeleteRecordsRequest",
    "FetchFrameMeta",
    "FetchProblemMeta",
    "FetchRequest",
    "OffsetAtTime",
    "OffsetsLookupAnswer",
    "OffsetsLookupRequest",
    "PartitionFetchRequest",
    "PartitionOffsets",
    "PartitionOffsetsLookup",
    "PartitionProduceResult",
    "ProduceAnswer",
    "ProduceFrameMeta",
    "ProduceResult",
    "RecordStatus",
    "Request",
    "TopicOffsetLookup",
    "TopicProduceAnswer",
    "check_isolation",
    "decode_request",
    "produce_entry",
]

PARTITIONS_MAX = 10_000
"""Partitions of one topic, and of one request: what one transaction plan and one answer can carry with ease."""
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
BYTES_DEFAULT = 1 << 20
FETCH_BYTES_DEFAULT = 50 << 20
WAIT_MS_DEFAULT = 500
WAIT_MS_MAX = 60_000
"""A long poll ends within five minutes; proxies cut idle requests sooner."""
TIMEOUT_MS_DEFAULT = 30_000
TIMEOUT_MS_MAX = 300_000

HIGH_WATERMARK = -1
"""In place of an offset when records are deleted: all that are committed."""

PartitionNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
PartitionCount = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
ReplicationFactor = Annotated[int, Meta(ge=1, le=32_767)]
OffsetNumber = Annotated[int, Meta(ge=0, le=INT64_MAX)]
EpochNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
ByteCount = Annotated[int, Meta(ge=0, le=INT32_MAX)]
TopicIdText = Annotated[
    str, Meta(pattern="^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", max_length=36)
]
Isolation = Literal["read_uncommitted", "read_committed"]


class CreateTopicRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/topics`; where partitions or replication factor are not named the cluster's default holds."""

    name: str
    partitions: PartitionCount | None = None
    replication_factor: ReplicationFactor | None = None
    config: dict[str, ConfigInput] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `invalid_topic_name`."""
        check_topic_name(self.name)


class AlterTopicRequest(Request, frozen=True, kw_only=True):
    """Body of `PATCH /v1/topics/{topic}`, a merge patch: null resets a key of `config`, or `config` as a whole.

    Partitions and replication factor have no default to go back to: null leaves them as they are. The replication
    factor is what new partitions get and what defaults follow from; replicas that there are move by `:reassign` alone.
    """

    partitions: PartitionCount | None = None
    replication_factor: ReplicationFactor | None = None
    config: dict[str, ConfigInput] | None = msgspec.field(default_factory=dict)


class AlterConfigRequest(Request, frozen=True, kw_only=True):
    """Body of `PATCH /v1/cluster/config` and `/v1/brokers/{broker}/config`, a merge patch: null resets a key or all."""

    config: dict[str, ConfigInput] | None


class DeleteRecordsRequest(Request, frozen=True, kw_only=True):
    """Body of `POST .../partitions/{partition}:delete-records`: records below the offset go.

    -1 stands for the high watermark, as in Kafka: everything that is committed.
    """

    offset: Annotated[int, Meta(ge=HIGH_WATERMARK, le=INT64_MAX)]


class DeleteRecordsAnswer(Answer, frozen=True, kw_only=True):
    """Where the log begins now, on every replica: the offset that was asked for, or what it was if that is higher."""

    low_watermark: int
    leader_epoch: int


class AcceptDamageRequest(Request, frozen=True, kw_only=True):
    """Body of `POST .../partitions/{partition}:accept-damage`: a range exactly as `log_damaged` told it."""

    first_offset: OffsetNumber
    next_good_offset: OffsetNumber


class AcceptDamageAnswer(Answer, frozen=True, kw_only=True):
    """The range that readers pass from now on."""

    first_offset: int
    next_good_offset: int
    leader_epoch: int


class PartitionFetchRequest(Request, frozen=True, kw_only=True):
    """One partition of a fetch: where to read, and which epochs the reader has seen."""

    topic_id: TopicIdText
    partition: PartitionNumber
    offset: OffsetNumber
    leader_epoch: EpochNumber | None = None
    last_epoch: EpochNumber | None = None
    max_bytes: ByteCount = BYTES_DEFAULT


class FetchRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/fetch`: one long poll over many partitions."""

    max_wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = WAIT_MS_DEFAULT
    min_bytes: ByteCount = 1
    max_bytes: ByteCount = FETCH_BYTES_DEFAULT
    isolation: Isolation = "read_uncommitted"
    formats: Annotated[tuple[int, ...], Meta(max_length=16)] = (1,)
    partitions: Annotated[list[PartitionFetchRequest], Meta(min_length=1, max_length=PARTITIONS_MAX)]

    def __post_init__(self) -> None:
        """Raise `invalid_config` for read_committed and `unsupported_version` for a client of other formats."""
        check_isolation(self.isolation)
        check_batch_formats(self.formats)


class ProduceFrameMeta(Request, frozen=True, kw_only=True):
    """Head of a produce frame: which partition the batch is for."""

    topic_id: TopicIdText
    partition: PartitionNumber


class FetchFrameMeta(Answer, frozen=True, kw_only=True):
    """Head of a fetch frame with data: what the answer says about the partition."""

    topic_id: str
    partition: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int
    leader_epoch: int


class FetchProblemMeta(Answer, frozen=True, kw_only=True):
    """Head of a fetch frame without data: why the partition could not be read, as a problem document."""

    topic_id: str
    partition: int
    problem: dict[str, object]


class ProduceResult(Answer, frozen=True, kw_only=True):
    """Where one batch was stored. `partition` stands only where the call does not name it.

    `log_append_time` is RFC 3339. `duplicate` says that an earlier attempt had stored the batch already.
    """

    partition: int | UnsetType = UNSET
    base_offset: int
    last_offset: int
    log_append_time: str
    leader_epoch: int
    duplicate: bool = False


class PartitionProduceResult(Answer, frozen=True, kw_only=True):
    """One partition's part of a produce answer: the members of a result, or `problem` alone.

    `topic_id` stands only where the request can name several topics.
    """

    topic_id: str | UnsetType = UNSET
    partition: int
    base_offset: int | UnsetType = UNSET
    last_offset: int | UnsetType = UNSET
    log_append_time: str | UnsetType = UNSET
    leader_epoch: int | UnsetType = UNSET
    duplicate: bool | UnsetType = UNSET
    problem: dict[str, object] | UnsetType = UNSET


class ProduceAnswer(Answer, frozen=True, kw_only=True):
    """Answer of `POST /v1/produce`: one entry a frame, in order of the frames."""

    results: list[PartitionProduceResult]


class RecordStatus(Answer, frozen=True, kw_only=True):
    """What became of one record of an easy produce that was stored in part."""

    status: int
    partition: int
    offset: int | UnsetType = UNSET
    code: str | UnsetType = UNSET


class TopicProduceAnswer(Answer, frozen=True, kw_only=True):
    """Answer of `POST /v1/topics/{topic}/records`; `records` stands in a 207, one entry a record, in order."""

    topic: str
    topic_id: str
    results: list[PartitionProduceResult]
    records: list[RecordStatus] | UnsetType = UNSET


class ProducedLines(Answer, frozen=True, kw_only=True):
    """What became of some lines of an NDJSON body: results, or the problem that refused them all.

    Lines count from 1, empty ones too. `status` is 200, 202 (with `acks=0`, and no results), 207 when not all
    partitions were stored, or the problem's.
    """

    first_line: int
    last_line: int
    status: int
    results: list[PartitionProduceResult] | UnsetType = UNSET
    problem: dict[str, object] | UnsetType = UNSET


class ProducedSummary(Answer, frozen=True, kw_only=True):
    """The last line of an answer to an NDJSON body; `status` is 200 only if every record was stored."""

    status: int
    records: int
    stored: int
    refused: int


class PartitionOffsets(Answer, frozen=True, kw_only=True):
    """Answer of `GET .../offsets`: where the log begins and ends, as the leader of `leader_epoch` knows it."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    last_stable_offset: int
    leader_epoch: int


class OffsetAtTime(Answer, frozen=True, kw_only=True):
    """Answer of `GET .../offsets?timestamp=`: the first record at or after it, both null if there is none."""

    offset: int | None
    timestamp: str | None
    leader_epoch: int


class TopicOffsetLookup(Request, frozen=True, kw_only=True):
    """One partition to look up; `timestamp` is a time (ms or RFC 3339), `earliest` or `latest`.

    `leader_epoch`: the highest one that the caller has seen; a broker that knows only lower ones answers
    `unknown_leader_epoch`, because its log may end before offsets that the caller has read.
    """

    topic: str
    topic_id: TopicIdText | None = None
    partition: PartitionNumber
    timestamp: int | str
    leader_epoch: EpochNumber | None = None

    def __post_init__(self) -> None:
        """Raise `invalid_topic_name`, and `malformed_request` for text that is no position."""
        check_topic_name(self.topic)
        _ = self.position

    @property
    def position(self) -> Literal["earliest", "latest"] | int:
        """The asked position: an end of the log, or a time in microseconds."""
        if self.timestamp == "earliest":
            return "earliest"
        if self.timestamp == "latest":
            return "latest"
        return parse_timestamp_us(self.timestamp, "timestamp")


class OffsetsLookupRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/offsets:lookup`."""

    partitions: Annotated[list[TopicOffsetLookup], Meta(max_length=PARTITIONS_MAX)]


class PartitionOffsetsLookup(Answer, frozen=True, kw_only=True):
    """One partition of a lookup's answer, in order of the request; null where no record is that late.

    With `problem` the partition could not be asked, and offset and timestamp are null.
    """

    topic: str
    topic_id: str | None
    partition: int
    offset: int | None
    timestamp: str | None
    leader_epoch: int | UnsetType = UNSET
    problem: dict[str, object] | UnsetType = UNSET


class OffsetsLookupAnswer(Answer, frozen=True, kw_only=True):
    """Answer of `POST /v1/offsets:lookup`."""

    partitions: list[PartitionOffsetsLookup]


def check_isolation(isolation: str) -> None:
    """Raise `invalid_config` for `read_committed`, whose behaviour does not exist yet."""
    if isolation == "read_committed":
        raise ProblemError(
            "invalid_config",
            "isolation='read_committed' is not supported yet; supported is read_uncommitted",
            data={"key": "isolation", "value": isolation, "allowed": "read_uncommitted"},
        )


def produce_entry(result: ProduceResult, *, topic_id: str | UnsetType = UNSET) -> PartitionProduceResult:
    """Return a result that names its partition as an entry of a many-partition answer."""
    assert result.partition is not UNSET, "the entry of a many-partition answer names its partition"
    return PartitionProduceResult(topic_id=topic_id, **msgspec.structs.asdict(result))
