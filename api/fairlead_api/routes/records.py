"""Routes of the calls that produce, fetch and delete records and look up offsets.

The module is a part of the route table, which `routes` assembles.

Answers about offsets contain the leader epoch. A consumer sends the highest epoch that it has seen, so that a broker
with a lower epoch does not answer with a smaller offset. The module is a single file because the calls share
parameters.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.access_needs import Kind, Operation, each_in_body, needs, on, self_with
from fairlead_api.bodies.json_records import (
    Encoding,
    FetchedRecord,
    JsonFetchAnswer,
    JsonProduceRequest,
    JsonRecord,
    JsonValueProduceRequest,
    JsonValueRecord,
)
from fairlead_api.bodies.media_types import (
    ARROW_STREAM,
    BATCHES,
    CLOUD_EVENT,
    CLOUD_EVENTS,
    EVENT_STREAM,
    FRAMES,
    JSON,
    NDJSON,
    Header,
)
from fairlead_api.bodies.requests import (
    BYTES_DEFAULT,
    INT32_MAX,
    READ_COMMITTED,
    TIMEOUT_MS_DEFAULT,
    TIMEOUT_MS_MAX,
    WAIT_MS_DEFAULT,
    WAIT_MS_MAX,
    AcceptDamageAnswer,
    AcceptDamageRequest,
    DeleteRecordsAnswer,
    DeleteRecordsRequest,
    FetchRequest,
    OffsetAtTime,
    OffsetsLookupAnswer,
    OffsetsLookupRequest,
    PartitionOffsets,
    ProduceAnswer,
    ProducedLines,
    ProducedSummary,
    ProduceResult,
    TopicProduceAnswer,
)
from fairlead_api.identifiers import Acks
from fairlead_api.routes.definitions import AnswerForm, HeaderParameter, Route, Traffic
from fairlead_api.routes.query_parameters import EARLIEST, ParameterKind, QueryParameter
from fairlead_api.routes.topics import TOPIC_ID_HEADER, TOPIC_PARAMETER

PARTITION_PARAMETERS: Final = {**TOPIC_PARAMETER, "partition": "index of the partition, from 0"}
_NUMBER: Final = "^[0-9]{1,19}$"
FORWARD_HEADER: Final = HeaderParameter(
    Header.FORWARD, "`never`: answer `not_leader` with the leader's address instead of forwarding"
)
LEADER_EPOCH_HEADER: Final = HeaderParameter(
    Header.LEADER_EPOCH, "highest leader epoch of the partition that the caller has seen", _NUMBER
)
PRODUCER_HEADERS: Final = (
    HeaderParameter(
        Header.PRODUCER_ID,
        "id of an idempotent producer, for a JSON or Arrow body; send all three producer headers or none",
        _NUMBER,
    ),
    HeaderParameter(Header.PRODUCER_EPOCH, "epoch of the producer", _NUMBER),
    HeaderParameter(
        Header.BASE_SEQUENCE,
        "sequence of the first record: 0 in a new epoch, otherwise the next after the last record of the previous "
        "batch; 0 follows 2^31 - 1",
        _NUMBER,
    ),
)
TRANSACTION_PATTERN: Final = r"^(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,9})$"
TRANSACTION_HEADER: Final = HeaderParameter(
    Header.TRANSACTION,
    "id of the transaction, such as `17.4`, to which the records belong; not for binary batches, and only with "
    "acks=all. After a lost answer, abort the transaction and begin another, or repeat a request to one partition that "
    "had the header `Fairlead-Base-Sequence`, by which the leader recognises the repeat",
    TRANSACTION_PATTERN,
)
COMMIT_HEADER: Final = HeaderParameter(
    Header.COMMIT_TRANSACTION,
    "id of the transaction, such as `17.4`, that is committed once all batches of the request are stored; the request "
    "has batches for all partitions of the transaction, and acks=all. The same request can be repeated. A broker of an "
    "earlier release ignores the header, and its answer has no `committed`",
    TRANSACTION_PATTERN,
)
IDEMPOTENCY_KEY_HEADER: Final = HeaderParameter(
    Header.IDEMPOTENCY_KEY,
    "1 to 64 visible ASCII characters that identify this request: a retry within 24 hours gets the result of the "
    "first attempt; for JSON and Arrow bodies. If the broker selects partitions, a retry after partitions were added "
    "to the topic might be stored a second time",
    "^[!-~]{1,64}$",
)
EVENT_HEADER: Final = HeaderParameter(
    "ce-specversion",
    "`1.0`: a CloudEvent in binary mode, whose body is the event's data, of any type; the other attributes are headers "
    "`ce-...`",
    r"^1\.0$",
)

ACKS: Final = QueryParameter(
    name="acks",
    kind=ParameterKind.CHOICE,
    default=Acks.ALL.value,
    choices=tuple(acks.value for acks in Acks),
    explanation="what the answer waits for: `all` for the high watermark to pass the records, `1` for the leader's "
    "append, `0` only for validation",
)
TIMEOUT_MS: Final = QueryParameter(
    name="timeout_ms",
    kind=ParameterKind.INTEGER,
    default=TIMEOUT_MS_DEFAULT,
    minimum=0,
    maximum=TIMEOUT_MS_MAX,
    unit="ms",
    explanation="maximum wait for the acknowledgement",
)
ENCODING: Final = QueryParameter(
    name="encoding",
    kind=ParameterKind.CHOICE,
    default=Encoding.UTF8.value,
    choices=tuple(encoding.value for encoding in Encoding),
    explanation="representation of key and value in JSON",
)
OFFSET: Final = QueryParameter(
    name="offset",
    kind=ParameterKind.OFFSET,
    default=EARLIEST,
    excludes=("timestamp",),
    explanation="start offset: a number, `earliest`, `latest`, or `-n` for n records before the end",
)
FETCH_TIMESTAMP: Final = QueryParameter(
    name="timestamp",
    kind=ParameterKind.TIMESTAMP,
    explanation="read from the first record at or after this time (ms or RFC 3339)",
)
OFFSETS_TIMESTAMP: Final = QueryParameter(
    name="timestamp",
    kind=ParameterKind.TIMESTAMP,
    explanation="look up the first record at or after this time (ms or RFC 3339)",
)
MAX_BYTES: Final = QueryParameter(
    name="max_bytes",
    kind=ParameterKind.INTEGER,
    default=BYTES_DEFAULT,
    maximum=INT32_MAX,
    unit="bytes",
    explanation="maximum size of the batches; the first batch is returned even if it is larger",
)
MIN_BYTES: Final = QueryParameter(
    name="min_bytes",
    kind=ParameterKind.INTEGER,
    default=1,
    maximum=INT32_MAX,
    unit="bytes",
    explanation="minimum size to wait for",
)
MAX_WAIT_MS: Final = QueryParameter(
    name="max_wait_ms",
    kind=ParameterKind.INTEGER,
    default=WAIT_MS_DEFAULT,
    maximum=WAIT_MS_MAX,
    unit="ms",
    explanation="maximum wait for `min_bytes`",
)
ISOLATION: Final = QueryParameter(
    name="isolation",
    kind=ParameterKind.CHOICE,
    default="read_uncommitted",
    choices=("read_uncommitted", READ_COMMITTED),
    explanation="isolation level: `read_committed` leaves out records of aborted transactions, and ends at the last "
    "stable offset, before the first record of an open transaction",
)
LAST_EPOCH: Final = QueryParameter(
    name="last_epoch",
    kind=ParameterKind.INTEGER,
    maximum=INT32_MAX,
    explanation="leader epoch of the last record read, to detect a truncated log",
)

TAIL_FROM: Final = QueryParameter(
    name="from",
    kind=ParameterKind.CHOICE,
    default="latest",
    choices=("earliest", "latest"),
    explanation="start position without a `Last-Event-ID` header. With a `Last-Event-ID` header, each "
    "partition in the header continues at its offset, and partitions that were added later begin at their start",
)
TAIL_SECONDS_MAX: Final = QueryParameter(
    name="max_seconds",
    kind=ParameterKind.INTEGER,
    minimum=1,
    maximum=86_400,
    unit="s",
    explanation="maximum duration; by default, the answer ends when the client disconnects or the broker stops",
)
TAIL_RECORDS_MAX: Final = QueryParameter(
    name="max_records",
    kind=ParameterKind.INTEGER,
    minimum=1,
    explanation="maximum number of records",
)
LAST_EVENT_ID_HEADER: Final = HeaderParameter(
    Header.LAST_EVENT_ID,
    "`partition:offset,...`, the id of the last event that the client received, after which to continue",
    "^([0-9]+:[0-9]+(,[0-9]+:[0-9]+)*)?$",
)

FETCH_HEADERS: Final = (
    Header.TOPIC_ID,
    Header.NEXT_OFFSET,
    Header.HIGH_WATERMARK,
    Header.LOG_START_OFFSET,
    Header.LAST_STABLE_OFFSET,
    Header.LEADER_EPOCH,
)

_TOPIC_PROBLEMS: Final = ("topic_not_found", "topic_recreated", "invalid_topic_name")
_PARTITION_PROBLEMS: Final = (*_TOPIC_PROBLEMS, "partition_not_found", "not_leader", "no_leader")
_EPOCH_PROBLEMS: Final = ("stale_leader_epoch", "unknown_leader_epoch")
"""Problems of calls with LEADER_EPOCH_HEADER."""
_BODY_PROBLEMS: Final = ("body_too_large", "unsupported_media_type")
_RECORD_PROBLEMS: Final = (
    "malformed_batch", "crc_mismatch", "unsupported_version", "batch_too_large", "invalid_record", "invalid_config",
)  # fmt: skip
_APPEND_PROBLEMS: Final = (
    "not_enough_replicas", "not_enough_replicas_after_append", "leader_changed", "ack_timeout", "shutting_down",
    "overloaded", "disk_full", "storage_failed", "coordination_unavailable",
)  # fmt: skip
_SEQUENCE_PROBLEMS: Final = ("out_of_order_sequence", "unknown_producer", "producer_fenced")
_TRANSACTION_PROBLEMS: Final = (
    "transaction_not_found", "transaction_committed", "transaction_aborted", "transaction_unfinished",
    "transaction_too_large", "not_possible_now",
)  # fmt: skip
_KEY_PROBLEMS: Final = ("idempotency_key_reused", "throttled")
_READ_PROBLEMS: Final = (
    "offset_out_of_range", "offset_expired", "log_truncated", "log_damaged", "offset_not_available",
    *_EPOCH_PROBLEMS, "invalid_config", "shutting_down", "storage_failed",
)  # fmt: skip
_LINES: Final = (
    "; an NDJSON body is answered with a line for each group of lines that is stored or refused, and a last line with "
    "totals, whose `status` is 200 only if all records were stored"
)
_JSON_REQUESTS: Final = (list[JsonRecord], JsonValueProduceRequest, list[JsonValueRecord])
_LINE_REQUESTS: Final = (JsonRecord, JsonValueRecord)
_ACCEPTED: Final = AnswerForm(
    status=202, explanation="with `acks=0`: the batch is valid, but not necessarily stored"
)


def _json(status: int, type_: object, explanation: str) -> AnswerForm:
    return AnswerForm(status=status, type=type_, media_types=(JSON,), explanation=explanation)


RECORD_ROUTES: Final = (
    Route(
        name="produce_topic",
        traffic=Traffic.PRODUCE,
        method="POST",
        path="/v1/topics/{topic}/records",
        summary="Produce records; the broker selects the partition of each record by its key",
        access=needs(on(Operation.WRITE, Kind.TOPIC), each_in_body(Operation.CREATE, Kind.TOPIC)),
        path_parameters=TOPIC_PARAMETER,
        request=JsonProduceRequest,
        other_requests=_JSON_REQUESTS,
        line_requests=_LINE_REQUESTS,
        body_types=(JSON, NDJSON, ARROW_STREAM, CLOUD_EVENT, CLOUD_EVENTS),
        query=(ACKS, TIMEOUT_MS, ENCODING),
        headers=(
            TOPIC_ID_HEADER,
            FORWARD_HEADER,
            TRANSACTION_HEADER,
            IDEMPOTENCY_KEY_HEADER,
            EVENT_HEADER,
        ),
        answers=(
            AnswerForm(
                status=200,
                type=TopicProduceAnswer,
                line_types=(ProducedLines, ProducedSummary),
                media_types=(JSON, NDJSON),
                explanation="all records were stored; one result per partition" + _LINES,
            ),
            _json(207, TopicProduceAnswer, "not all partitions were stored; one status per record"),
            _ACCEPTED,
        ),
        problems=(
            *_PARTITION_PROBLEMS,
            *_BODY_PROBLEMS,
            *_RECORD_PROBLEMS,
            *_APPEND_PROBLEMS,
            *_TRANSACTION_PROBLEMS,
            "producer_fenced",
            *_KEY_PROBLEMS,
        ),
    ),
    Route(
        name="produce_partition",
        traffic=Traffic.PRODUCE,
        method="POST",
        path="/v1/topics/{topic}/partitions/{partition}/records",
        summary="Produce one batch to one partition, atomically",
        access=needs(on(Operation.WRITE, Kind.TOPIC), each_in_body(Operation.CREATE, Kind.TOPIC)),
        path_parameters=PARTITION_PARAMETERS,
        request=JsonProduceRequest,
        other_requests=_JSON_REQUESTS,
        line_requests=_LINE_REQUESTS,
        body_types=(JSON, NDJSON, BATCHES, ARROW_STREAM, CLOUD_EVENT, CLOUD_EVENTS),
        query=(ACKS, TIMEOUT_MS, ENCODING),
        headers=(
            TOPIC_ID_HEADER,
            FORWARD_HEADER,
            LEADER_EPOCH_HEADER,
            *PRODUCER_HEADERS,
            TRANSACTION_HEADER,
            IDEMPOTENCY_KEY_HEADER,
            EVENT_HEADER,
        ),
        answers=(
            AnswerForm(
                status=200,
                type=ProduceResult,
                line_types=(ProducedLines, ProducedSummary),
                media_types=(JSON, NDJSON),
                headers=(Header.DUPLICATE,),
                explanation="the batch was stored, now or by an earlier attempt" + _LINES,
            ),
            _ACCEPTED,
        ),
        problems=(
            *_PARTITION_PROBLEMS,
            *_BODY_PROBLEMS,
            *_RECORD_PROBLEMS,
            *_APPEND_PROBLEMS,
            *_SEQUENCE_PROBLEMS,
            *_TRANSACTION_PROBLEMS,
            *_EPOCH_PROBLEMS,
            *_KEY_PROBLEMS,
        ),
    ),
    Route(
        name="produce",
        traffic=Traffic.PRODUCE,
        method="POST",
        path="/v1/produce",
        summary="Produce to many partitions, one batch each",
        access=self_with(
            each_in_body(Operation.WRITE, Kind.TOPIC), each_in_body(Operation.WRITE, Kind.PRODUCER)
        ),
        body_types=(FRAMES,),
        query=(ACKS, TIMEOUT_MS),
        headers=(FORWARD_HEADER, COMMIT_HEADER),
        answers=(
            _json(
                200,
                ProduceAnswer,
                "all batches were stored, and the transaction of the header, if any, is committed",
            ),
            _json(
                207,
                ProduceAnswer,
                "not all batches were stored, or the transaction of the header is not committed; a result or a problem "
                "per partition",
            ),
            _ACCEPTED,
        ),
        problems=(*_BODY_PROBLEMS, "unsupported_version", "not_possible_now", "shutting_down", "overloaded"),
    ),
    Route(
        name="fetch_partition",
        traffic=Traffic.FETCH,
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/records",
        summary="Fetch records of one partition",
        access=needs(on(Operation.READ, Kind.TOPIC)),
        path_parameters=PARTITION_PARAMETERS,
        query=(
            OFFSET,
            FETCH_TIMESTAMP,
            MAX_BYTES,
            MIN_BYTES,
            MAX_WAIT_MS,
            ISOLATION,
            LAST_EPOCH,
            ENCODING,
        ),
        headers=(TOPIC_ID_HEADER, FORWARD_HEADER, LEADER_EPOCH_HEADER),
        answers=(
            AnswerForm(
                status=200,
                type=JsonFetchAnswer,
                media_types=(JSON, BATCHES, ARROW_STREAM),
                headers=FETCH_HEADERS,
                explanation="records from the offset; a binary answer may begin with earlier records",
            ),
            AnswerForm(status=204, headers=FETCH_HEADERS, explanation="the wait ended without records"),
        ),
        problems=(*_PARTITION_PROBLEMS, "not_acceptable", *_READ_PROBLEMS),
    ),
    Route(
        name="fetch",
        traffic=Traffic.FETCH,
        method="POST",
        path="/v1/fetch",
        summary="Fetch from many partitions with one long poll",
        access=self_with(each_in_body(Operation.READ, Kind.TOPIC)),
        request=FetchRequest,
        body_types=(JSON,),
        headers=(FORWARD_HEADER,),
        answers=(
            AnswerForm(
                status=200,
                media_types=(FRAMES,),
                explanation="one frame per partition, in the order of the request: batches or a problem",
            ),
            AnswerForm(
                status=204, explanation="the quotas of the caller allowed no records before the wait ended"
            ),
        ),
        problems=(
            *_BODY_PROBLEMS,
            "not_acceptable",
            "unsupported_version",
            "invalid_config",
            "shutting_down",
        ),
    ),
    Route(
        name="tail_topic",
        traffic=Traffic.FETCH,
        method="GET",
        path="/v1/topics/{topic}/records",
        summary="Tail all partitions of a topic and send each record as it arrives",
        access=needs(on(Operation.READ, Kind.TOPIC)),
        path_parameters=TOPIC_PARAMETER,
        query=(TAIL_FROM, TAIL_SECONDS_MAX, TAIL_RECORDS_MAX, ISOLATION, ENCODING),
        headers=(TOPIC_ID_HEADER, FORWARD_HEADER, LAST_EVENT_ID_HEADER),
        answers=(
            AnswerForm(
                status=200,
                line_types=(FetchedRecord,),
                media_types=(NDJSON, EVENT_STREAM),
                headers=(Header.TOPIC_ID,),
                explanation='one record per line or event; a later failure is the line or event `{"problem": ...}`',
            ),
        ),
        problems=(*_PARTITION_PROBLEMS, "not_acceptable", "shutting_down"),
    ),
    Route(
        name="partition_offsets",
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/offsets",
        summary="The start and end offsets of a partition's log",
        access=needs(on(Operation.DESCRIBE, Kind.TOPIC)),
        path_parameters=PARTITION_PARAMETERS,
        query=(OFFSETS_TIMESTAMP, ISOLATION),
        headers=(TOPIC_ID_HEADER, FORWARD_HEADER, LEADER_EPOCH_HEADER),
        answers=(
            AnswerForm(
                status=200,
                type=PartitionOffsets,
                other_types=(OffsetAtTime,),
                media_types=(JSON,),
                explanation="the offsets; with `timestamp`, the first record at or after that time",
            ),
        ),
        problems=(*_PARTITION_PROBLEMS, *_EPOCH_PROBLEMS, "offset_not_available", "shutting_down"),
    ),
    Route(
        name="delete_records",
        method="POST",
        path="/v1/topics/{topic}/partitions/{partition}:delete-records",
        summary="Delete the records of a partition below an offset",
        access=needs(on(Operation.DELETE, Kind.TOPIC)),
        path_parameters=PARTITION_PARAMETERS,
        request=DeleteRecordsRequest,
        body_types=(JSON,),
        headers=(TOPIC_ID_HEADER, FORWARD_HEADER, LEADER_EPOCH_HEADER),
        answers=(_json(200, DeleteRecordsAnswer, "the partition begins at this offset, even after a crash"),),
        problems=(
            *_PARTITION_PROBLEMS,
            *_EPOCH_PROBLEMS,
            *_BODY_PROBLEMS,
            "offset_out_of_range",
            "offset_not_available",
            "shutting_down",
            "disk_full",
            "storage_failed",
        ),
    ),
    Route(
        name="accept_damage",
        method="POST",
        path="/v1/topics/{topic}/partitions/{partition}:accept-damage",
        summary="Accept the loss of the records in a damaged range, which consumers skip from then on",
        access=needs(on(Operation.ALTER, Kind.CLUSTER), on(Operation.DELETE, Kind.TOPIC)),
        path_parameters=PARTITION_PARAMETERS,
        request=AcceptDamageRequest,
        body_types=(JSON,),
        headers=(TOPIC_ID_HEADER, FORWARD_HEADER, LEADER_EPOCH_HEADER),
        answers=(
            _json(200, AcceptDamageAnswer, "the acceptance survives a crash; the call may be repeated"),
        ),
        problems=(
            *_PARTITION_PROBLEMS,
            *_EPOCH_PROBLEMS,
            *_BODY_PROBLEMS,
            "conflict",
            "shutting_down",
            "disk_full",
            "storage_failed",
        ),
    ),
    Route(
        name="lookup_offsets",
        traffic=Traffic.ROUTINE,
        method="POST",
        path="/v1/offsets:lookup",
        summary="Look up offsets in many partitions: by time, or the ends of their logs",
        access=self_with(each_in_body(Operation.DESCRIBE, Kind.TOPIC)),
        request=OffsetsLookupRequest,
        body_types=(JSON,),
        headers=(FORWARD_HEADER,),
        answers=(
            _json(200, OffsetsLookupAnswer, "one entry per partition, in the order of the request"),
            _json(
                207,
                OffsetsLookupAnswer,
                "some partitions failed; the entry of a failed partition has a problem",
            ),
        ),
        problems=(*_BODY_PROBLEMS, "invalid_topic_name", "shutting_down"),
    ),
)
