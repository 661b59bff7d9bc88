"""JSON requests about topics, records and offsets, and answers of produce and offset calls.

The broker decodes the requests with `json_bodies.decode_request`; the SDK and the CLI build the requests. A request
object satisfies every rule that can be checked without knowing the cluster. This module must not depend on existing
topics.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead_api.bodies.decided_transactions import DecidedTransaction
from fairlead_api.bodies.json_bodies import Request, decode_request
from fairlead_api.bodies.metadata import Answer
from fairlead_api.configuration import ConfigInput
from fairlead_api.identifiers import check_topic_name
from fairlead_api.timestamps import parse_timestamp_us
from fairlead_api.versions import check_batch_formats

__all__ = [
    "RAW",
    "READ_COMMITTED",
    "AcceptDamageAnswer",
    "AcceptDamageRequest",
    "AlterConfigRequest",
    "AlterTopicRequest",
    "BrokerNumber",
    "CreateTopicRequest",
    "DeleteRecordsAnswer",
    "DeleteRecordsRequest",
    "FetchFrameMeta",
    "FetchIsolation",
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
    "decode_request",
    "produce_entry",
]

PARTITIONS_MAX = 10_000
"""Maximum number of partitions of a topic and of a request, which limits the size of transactions and answers."""
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
BYTES_DEFAULT = 1 << 20
FETCH_BYTES_DEFAULT = 50 << 20
WAIT_MS_DEFAULT = 500
WAIT_MS_MAX = 60_000
"""Maximum wait of a long poll in milliseconds; many proxies abort requests that are idle for longer."""
TIMEOUT_MS_DEFAULT = 30_000
TIMEOUT_MS_MAX = 300_000

HIGH_WATERMARK = -1
"""Value that, instead of an offset, requests the deletion of all committed records."""

PartitionNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
PartitionCount = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]
ReplicationFactor = Annotated[int, Meta(ge=1, le=32_767)]
BrokerNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
NewReplicas = Annotated[
    list[Annotated[list[BrokerNumber], Meta(min_length=1)]], Meta(min_length=1, max_length=PARTITIONS_MAX)
]
"""Brokers of the replicas of each new partition, the preferred leader first."""
OffsetNumber = Annotated[int, Meta(ge=0, le=INT64_MAX)]
EpochNumber = Annotated[int, Meta(ge=0, le=INT32_MAX)]
ByteCount = Annotated[int, Meta(ge=0, le=INT32_MAX)]
TopicIdText = Annotated[
    str, Meta(pattern="^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", max_length=36)
]
Isolation = Literal["read_uncommitted", "read_committed"]
FetchIsolation = Literal["read_uncommitted", "read_committed", "raw"]
READ_COMMITTED: Final = "read_committed"
"""Isolation level of readers that get only records of committed transactions."""
RAW: Final = "raw"
"""Isolation level of copies: all stored batches below the high watermark, and a strict comparison of leader epochs."""


class CreateTopicRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `POST /v1/topics`; partitions and replication factor default to the cluster's configuration.

    `replicas` names the brokers of each partition's replicas, the preferred leader first, instead of brokers that the
    controller chooses.
    """

    name: str
    partitions: PartitionCount | None = None
    replication_factor: ReplicationFactor | None = None
    replicas: NewReplicas | None = None
    config: dict[str, ConfigInput] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `invalid_topic_name`."""
        check_topic_name(self.name)


class AlterTopicRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `PATCH /v1/topics/{topic}`, a merge patch: null resets a key of `config`, or `config` as a whole.

    Partitions and replication factor have no default; null leaves both unchanged. The replication factor applies to new
    partitions and to defaults that depend on the factor; existing replicas are moved only by `:reassign`. `replicas`
    names the brokers of the replicas of each added partition, as in `POST /v1/topics`.
    """

    partitions: PartitionCount | None = None
    replication_factor: ReplicationFactor | None = None
    replicas: NewReplicas | None = None
    config: dict[str, ConfigInput] | None = msgspec.field(default_factory=dict)


class AlterConfigRequest(Request, frozen=True, kw_only=True):
    """Merge patch in `PATCH /v1/cluster/config` and `/v1/brokers/{broker}/config`: null resets one key or all keys."""

    config: dict[str, ConfigInput] | None


class DeleteRecordsRequest(Request, frozen=True, kw_only=True):
    """Body of `POST .../partitions/{partition}:delete-records`: records below the offset are deleted.

    -1 means the high watermark, as in Kafka: all committed records are deleted.
    """

    offset: Annotated[int, Meta(ge=HIGH_WATERMARK, le=INT64_MAX)]


class DeleteRecordsAnswer(Answer, frozen=True, kw_only=True):
    """New log start on every replica: the requested offset, or the previous log start if that is higher."""

    low_watermark: int
    leader_epoch: int


class AcceptDamageRequest(Request, frozen=True, kw_only=True):
    """Body of `POST .../partitions/{partition}:accept-damage`: exactly the range that `log_damaged` reported."""

    first_offset: OffsetNumber
    next_good_offset: OffsetNumber


class AcceptDamageAnswer(Answer, frozen=True, kw_only=True):
    """Range of offsets that consumers skip after the operation."""

    first_offset: int
    next_good_offset: int
    leader_epoch: int


class PartitionFetchRequest(Request, frozen=True, kw_only=True):
    """One partition of a fetch: the offset to read from, and the epochs that the consumer has seen."""

    topic_id: TopicIdText
    partition: PartitionNumber
    offset: OffsetNumber
    leader_epoch: EpochNumber | None = None
    last_epoch: EpochNumber | None = None
    max_bytes: ByteCount = BYTES_DEFAULT


class FetchRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/fetch`: one long poll over many partitions.

    With `raw`, which copies of whole logs use, `log_truncated` also reports a leader epoch that the log does not have.
    """

    max_wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = WAIT_MS_DEFAULT
    min_bytes: ByteCount = 1
    max_bytes: ByteCount = FETCH_BYTES_DEFAULT
    isolation: FetchIsolation = "read_uncommitted"
    formats: Annotated[tuple[int, ...], Meta(max_length=16)] = (1,)
    partitions: Annotated[list[PartitionFetchRequest], Meta(min_length=1, max_length=PARTITIONS_MAX)]

    def __post_init__(self) -> None:
        """Raise `unsupported_version` if no format is supported."""
        check_batch_formats(self.formats)


class ProduceFrameMeta(Request, frozen=True, kw_only=True):
    """Metadata of a produce frame: the partition of the batch."""

    topic_id: TopicIdText
    partition: PartitionNumber


class FetchFrameMeta(Answer, frozen=True, kw_only=True):
    """Metadata of a fetch frame with data: the partition and its offsets.

    Records below `deleted_to` were deleted on request; the member is left out if none were. Compaction may have removed
    tombstones and markers of transactions below `removed_to`; the member is left out if it has removed none.
    """

    topic_id: str
    partition: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int
    leader_epoch: int
    deleted_to: int | UnsetType = UNSET
    removed_to: int | UnsetType = UNSET


class FetchProblemMeta(Answer, frozen=True, kw_only=True):
    """Metadata of a fetch frame without data: the partition and the problem document of the failed read."""

    topic_id: str
    partition: int
    problem: dict[str, object]


class ProduceResult(Answer, frozen=True, kw_only=True):
    """Position of a stored batch; `partition` is present only if the call does not name the partition.

    `log_append_time` is an RFC 3339 timestamp. `duplicate` is true if an earlier attempt had already stored the batch.
    """

    partition: int | UnsetType = UNSET
    base_offset: int
    last_offset: int
    log_append_time: str
    leader_epoch: int
    duplicate: bool = False


class PartitionProduceResult(Answer, frozen=True, kw_only=True):
    """Entry of one partition in a produce answer: either the fields of a result, or only `problem`.

    `topic_id` is present only if the request can name several topics.
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
    """Answer to `POST /v1/produce` with one entry per frame, in the order of the frames.

    `committed` is the transaction that the header `Fairlead-Commit-Transaction` names, if it is committed. Entries of
    batches that an earlier attempt stored before the commit may lack the result. `commit_problem` is the reason why all
    batches are stored and the transaction is not committed.
    """

    results: list[PartitionProduceResult]
    committed: DecidedTransaction | UnsetType = UNSET
    commit_problem: dict[str, object] | UnsetType = UNSET


class RecordStatus(Answer, frozen=True, kw_only=True):
    """Outcome of one record of a topic produce request whose records were only partly stored."""

    status: int
    partition: int
    offset: int | UnsetType = UNSET
    code: str | UnsetType = UNSET


class TopicProduceAnswer(Answer, frozen=True, kw_only=True):
    """Answer to `POST /v1/topics/{topic}/records`; with status 207, `records` has one entry per record."""

    topic: str
    topic_id: str
    results: list[PartitionProduceResult]
    records: list[RecordStatus] | UnsetType = UNSET


class ProducedLines(Answer, frozen=True, kw_only=True):
    """Outcome for a group of lines in an NDJSON body: the results, or the problem that caused the refusal of all lines.

    Lines are numbered from 1, including empty lines. `status` is 200, 202 (for `acks=0`, without results), 207 if not
    all partitions were stored, or the status of the problem.
    """

    first_line: int
    last_line: int
    status: int
    results: list[PartitionProduceResult] | UnsetType = UNSET
    problem: dict[str, object] | UnsetType = UNSET


class ProducedSummary(Answer, frozen=True, kw_only=True):
    """Last line of the answer to an NDJSON body; `status` is 200 only if every record was stored."""

    status: int
    records: int
    stored: int
    refused: int


class PartitionOffsets(Answer, frozen=True, kw_only=True):
    """Answer to `GET .../offsets`: start and end of the log, as known to the leader of the epoch `leader_epoch`."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    last_stable_offset: int
    leader_epoch: int


class OffsetAtTime(Answer, frozen=True, kw_only=True):
    """Answer to `GET .../offsets?timestamp=`: the first record at or after the time, or two nulls if there is none."""

    offset: int | None
    timestamp: str | None
    leader_epoch: int


class TopicOffsetLookup(Request, frozen=True, kw_only=True):
    """One partition to look up; `timestamp` is a time (ms or RFC 3339), `earliest` or `latest`.

    `leader_epoch` is the highest epoch that the caller has seen. A broker that knows only lower epochs answers
    `unknown_leader_epoch`, because its log may end before offsets that the caller has read.
    """

    topic: str
    topic_id: TopicIdText | None = None
    partition: PartitionNumber
    timestamp: int | str
    leader_epoch: EpochNumber | None = None

    def __post_init__(self) -> None:
        """Raise `invalid_topic_name` for an invalid name, and `malformed_request` for an invalid position."""
        check_topic_name(self.topic)
        _ = self.position

    @property
    def position(self) -> Literal["earliest", "latest"] | int:
        """Requested position: start or end of the log, or a timestamp in microseconds."""
        if self.timestamp == "earliest":
            return "earliest"
        if self.timestamp == "latest":
            return "latest"
        return parse_timestamp_us(self.timestamp, "timestamp")


class OffsetsLookupRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `POST /v1/offsets:lookup`; with `read_committed`, logs end at their last stable offsets."""

    isolation: Isolation = "read_uncommitted"
    partitions: Annotated[list[TopicOffsetLookup], Meta(max_length=PARTITIONS_MAX)]


class PartitionOffsetsLookup(Answer, frozen=True, kw_only=True):
    """Entry of one partition in the answer to a lookup, in the order of the request.

    Offset and timestamp are null if all records are older than the requested time. If `problem` is set, the partition
    could not be queried, and offset and timestamp are null.
    """

    topic: str
    topic_id: str | None
    partition: int
    offset: int | None
    timestamp: str | None
    leader_epoch: int | UnsetType = UNSET
    problem: dict[str, object] | UnsetType = UNSET


class OffsetsLookupAnswer(Answer, frozen=True, kw_only=True):
    """Answer to `POST /v1/offsets:lookup`."""

    partitions: list[PartitionOffsetsLookup]


def produce_entry(result: ProduceResult, *, topic_id: str | UnsetType = UNSET) -> PartitionProduceResult:
    """Convert the result for one partition to an entry of an answer about several partitions."""
    assert result.partition is not UNSET, "an entry of a many-partition answer names its partition"
    return PartitionProduceResult(topic_id=topic_id, **msgspec.structs.asdict(result))
