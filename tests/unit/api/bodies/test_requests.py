"""Typed request objects follow the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from fairlead_api.bodies.requests import (
    AlterConfigRequest,
    AlterTopicRequest,
    CreateTopicRequest,
    FetchFrameMeta,
    FetchProblemMeta,
    FetchRequest,
    OffsetAtTime,
    OffsetsLookupAnswer,
    OffsetsLookupRequest,
    PartitionFetchRequest,
    PartitionOffsets,
    PartitionOffsetsLookup,
    PartitionProduceResult,
    ProduceAnswer,
    ProduceFrameMeta,
    ProduceResult,
    RecordStatus,
    TopicProduceAnswer,
    decode_request,
    produce_entry,
)
from fairlead_api.problems import ProblemError

if TYPE_CHECKING:
    from fairlead_api.bodies.requests import Request

TOPIC_ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
RESULT = ProduceResult(
    base_offset=5, last_offset=9, log_append_time="1970-01-01T00:00:00.000000Z", leader_epoch=2
)
RESULT_JSON = {
    "base_offset": 5,
    "last_offset": 9,
    "log_append_time": "1970-01-01T00:00:00.000000Z",
    "leader_epoch": 2,
    "duplicate": False,
}


def refusal(type_: type[Request], **members: object) -> ProblemError:
    """Return the problem of a body with the given fields."""
    with pytest.raises(ProblemError) as refused:
        decode_request(type_, msgspec.json.encode(members))
    return refused.value


def fetch(**members: object) -> dict[str, object]:
    """Return one partition of a fetch request."""
    return {"topic_id": TOPIC_ID, "partition": 0, "offset": 0, **members}


def test_a_topic_needs_only_a_name() -> None:
    """A new topic needs only a name; the cluster has defaults for partitions, replicas and configuration."""
    request = decode_request(CreateTopicRequest, b'{"name": "flights"}')

    assert request == CreateTopicRequest(name="flights", partitions=None, replication_factor=None, config={})


def test_configuration_of_a_topic_is_any_scalar() -> None:
    """A configuration value of a topic is any scalar; the catalogue of keys decides which values are allowed."""
    config = {"segment.ms": 5, "durability": "synced", "a": None, "b": True, "c": 0.5}

    assert decode_request(AlterTopicRequest, msgspec.json.encode({"config": config})).config == config
    assert decode_request(AlterTopicRequest, b"{}") == AlterTopicRequest(partitions=None, config={})
    for type_ in (AlterTopicRequest, AlterConfigRequest):
        assert decode_request(type_, b'{"config": null}').config is None


@pytest.mark.parametrize(
    ("type_", "members", "code", "part"),
    [
        (CreateTopicRequest, {}, "malformed_request", "required field `name`"),
        (CreateTopicRequest, {"name": "a/b"}, "invalid_topic_name", "'a/b'"),
        (CreateTopicRequest, {"name": ".."}, "invalid_topic_name", "'..'"),
        (CreateTopicRequest, {"name": "a", "partitions": 0}, "malformed_request", "$.partitions"),
        (CreateTopicRequest, {"name": "a", "partitions": 10_001}, "malformed_request", "<= 10000"),
        (CreateTopicRequest, {"name": "a", "partitions": "1"}, "malformed_request", "$.partitions"),
        (CreateTopicRequest, {"name": "a", "partitions": True}, "malformed_request", "true"),
        (CreateTopicRequest, {"name": "a", "replication_factor": 0}, "malformed_request", ">= 1"),
        (CreateTopicRequest, {"name": "a", "partition": 1}, "unknown_option", "'partition'"),
        (
            CreateTopicRequest,
            {"name": "a", "config": {"segment.ms": [1]}},
            "malformed_request",
            "$.config.segment.ms",
        ),
        (CreateTopicRequest, {"name": "a", "config": []}, "malformed_request", "$.config"),
        (
            AlterTopicRequest,
            {"name": "a"},
            "unknown_option",
            "partitions, replication_factor, replicas, config",
        ),
        (AlterTopicRequest, {"partitions": -1}, "malformed_request", ">= 1"),
        (FetchRequest, {}, "malformed_request", "required field `partitions`"),
        (FetchRequest, {"partitions": [{}]}, "malformed_request", "$.partitions[0]"),
        (
            FetchRequest,
            {"partitions": [fetch(topic_id="x")]},
            "malformed_request",
            "$.partitions[0].topic_id",
        ),
        (FetchRequest, {"partitions": [fetch(topic_id=f"{TOPIC_ID}\n")]}, "malformed_request", "topic_id"),
        (FetchRequest, {"partitions": [fetch(topic_id=TOPIC_ID.upper())]}, "malformed_request", "topic_id"),
        (FetchRequest, {"partitions": [fetch(offset=-1)]}, "malformed_request", "$.partitions[0].offset"),
        (FetchRequest, {"partitions": [fetch(offset=2**63)]}, "malformed_request", "$.partitions[0].offset"),
        (FetchRequest, {"partitions": [fetch(partition=2**31)]}, "malformed_request", "partition"),
        (FetchRequest, {"partitions": [fetch(max_byte=1)]}, "unknown_option", "max_bytes"),
        (FetchRequest, {"partitions": []}, "malformed_request", "$.partitions"),
        (AlterConfigRequest, {}, "malformed_request", "required field `config`"),
        (FetchRequest, {"partitions": [fetch()] * 10_001}, "malformed_request", "10000"),
        (
            FetchRequest,
            {"partitions": [fetch()], "max_wait_ms": 60_001},
            "malformed_request",
            "$.max_wait_ms",
        ),
        (FetchRequest, {"partitions": [fetch()], "isolation": "dirty"}, "malformed_request", "$.isolation"),
        (FetchRequest, {"partitions": [fetch()], "formats": [2]}, "unsupported_version", "[2]"),
        (FetchRequest, {"partitions": [fetch()], "formats": []}, "unsupported_version", "[]"),
        (ProduceFrameMeta, {"topic_id": TOPIC_ID}, "malformed_request", "`partition`"),
        (ProduceFrameMeta, {"topic_id": "x", "partition": 0}, "malformed_request", "$.topic_id"),
        (
            OffsetsLookupRequest,
            {"partitions": [{"topic": "a", "partition": 0}]},
            "malformed_request",
            "timestamp",
        ),
        (
            OffsetsLookupRequest,
            {"partitions": [{"topic": "a", "partition": 0, "timestamp": "soon"}]},
            "malformed_request",
            "'soon'",
        ),
        (
            OffsetsLookupRequest,
            {"partitions": [{"topic": "a b", "partition": 0, "timestamp": 0}]},
            "invalid_topic_name",
            "'a b'",
        ),
    ],
)
def test_a_bad_request_is_refused_with_its_place(
    type_: type[Request], members: dict[str, object], code: str, part: str
) -> None:
    """An invalid request is refused, and the problem names the field, the value or the rule."""
    problem = refusal(type_, **members)

    assert problem.code == code
    assert part in problem.detail


def test_a_fetch_has_the_defaults_of_the_contract() -> None:
    """A fetch has the contract's defaults: half a second, at least 1 byte, 1 MiB per partition, `read_uncommitted`."""
    request = decode_request(FetchRequest, msgspec.json.encode({"partitions": [fetch()]}))
    [partition] = request.partitions

    assert (request.max_wait_ms, request.min_bytes, request.isolation, request.formats) == (
        500,
        1,
        "read_uncommitted",
        (1,),
    )
    assert partition == PartitionFetchRequest(
        topic_id=TOPIC_ID, partition=0, offset=0, leader_epoch=None, last_epoch=None, max_bytes=1 << 20
    )


@pytest.mark.parametrize(
    ("timestamp", "position"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        (1500, 1_500_000),
        ("1500", 1_500_000),
        ("1970-01-01T00:00:01Z", 1_000_000),
    ],
)
def test_a_lookup_asks_for_an_end_or_a_time(timestamp: int | str, position: str | int) -> None:
    """An offset lookup names an end of the log or a time in `timestamp`, and may also name the topic id."""
    body = msgspec.json.encode(
        {"partitions": [{"topic": "a", "topic_id": TOPIC_ID, "partition": 3, "timestamp": timestamp}]}
    )
    [lookup] = decode_request(OffsetsLookupRequest, body).partitions

    assert (lookup.topic, lookup.topic_id, lookup.partition) == ("a", TOPIC_ID, 3)
    assert lookup.position == position


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (RESULT, RESULT_JSON),
        (msgspec.structs.replace(RESULT, partition=3), {"partition": 3, **RESULT_JSON}),
        (
            ProduceAnswer(
                results=[
                    produce_entry(msgspec.structs.replace(RESULT, partition=3), topic_id=TOPIC_ID),
                    PartitionProduceResult(topic_id=TOPIC_ID, partition=4, problem={"code": "disk_full"}),
                ]
            ),
            {
                "results": [
                    {"topic_id": TOPIC_ID, "partition": 3, **RESULT_JSON},
                    {"topic_id": TOPIC_ID, "partition": 4, "problem": {"code": "disk_full"}},
                ]
            },
        ),
        (
            TopicProduceAnswer(
                topic="a",
                topic_id=TOPIC_ID,
                results=[produce_entry(msgspec.structs.replace(RESULT, partition=3))],
            ),
            {"topic": "a", "topic_id": TOPIC_ID, "results": [{"partition": 3, **RESULT_JSON}]},
        ),
        (
            TopicProduceAnswer(
                topic="a",
                topic_id=TOPIC_ID,
                results=[],
                records=[
                    RecordStatus(status=200, partition=1, offset=7),
                    RecordStatus(status=507, partition=2, code="disk_full"),
                ],
            ),
            {
                "topic": "a",
                "topic_id": TOPIC_ID,
                "results": [],
                "records": [
                    {"status": 200, "partition": 1, "offset": 7},
                    {"status": 507, "partition": 2, "code": "disk_full"},
                ],
            },
        ),
        (
            FetchFrameMeta(
                topic_id=TOPIC_ID,
                partition=0,
                next_offset=1,
                high_watermark=2,
                log_start_offset=0,
                last_stable_offset=2,
                leader_epoch=3,
            ),
            {
                "topic_id": TOPIC_ID,
                "partition": 0,
                "next_offset": 1,
                "high_watermark": 2,
                "log_start_offset": 0,
                "last_stable_offset": 2,
                "leader_epoch": 3,
            },
        ),
        (
            FetchProblemMeta(topic_id=TOPIC_ID, partition=0, problem={"code": "no_leader"}),
            {"topic_id": TOPIC_ID, "partition": 0, "problem": {"code": "no_leader"}},
        ),
        (
            PartitionOffsets(
                log_start_offset=0, high_watermark=5, log_end_offset=6, last_stable_offset=5, leader_epoch=1
            ),
            {
                "log_start_offset": 0,
                "high_watermark": 5,
                "log_end_offset": 6,
                "last_stable_offset": 5,
                "leader_epoch": 1,
            },
        ),
        (
            OffsetAtTime(offset=None, timestamp=None, leader_epoch=1),
            {"offset": None, "timestamp": None, "leader_epoch": 1},
        ),
        (
            OffsetsLookupAnswer(
                partitions=[
                    PartitionOffsetsLookup(
                        topic="a", topic_id=TOPIC_ID, partition=0, offset=1, timestamp=None
                    ),
                ]
            ),
            {
                "partitions": [
                    {"topic": "a", "topic_id": TOPIC_ID, "partition": 0, "offset": 1, "timestamp": None}
                ]
            },
        ),
    ],
)
def test_an_answer_has_the_members_of_the_contract(answer: msgspec.Struct, expected: object) -> None:
    """An answer omits fields that do not apply, and the SDK reads back what the broker wrote."""
    text = msgspec.json.encode(answer)

    assert msgspec.json.decode(text) == expected
    assert msgspec.json.decode(text, type=type(answer)) == answer
