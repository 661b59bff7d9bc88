"""Requests about consumer groups are checked against the contract before the group is looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec import UNSET

from fairlead_api.bodies.group_requests import (
    CommitRequest,
    HeartbeatRequest,
    OffsetCommit,
    ResetKind,
    ResetPartition,
    ResetPosition,
    ResetRequest,
    ResetTarget,
    decode_commit,
    heartbeat_interval_ms,
)
from fairlead_api.bodies.json_bodies import decode_request
from fairlead_api.bodies.json_slices import WHOLE_BYTES_MAX
from fairlead_api.problems import ProblemError

if TYPE_CHECKING:
    from fairlead_api.bodies.json_bodies import Request

TOPIC_ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
JOIN: dict[str, object] = {"member_epoch": 0, "topics": ["flights"]}
ENTRY: dict[str, object] = {"topic": "flights", "partition": 3, "offset": 500}


def refusal(type_: type[Request], members: dict[str, object]) -> ProblemError:
    """Return the problem of a body with the given fields."""
    with pytest.raises(ProblemError) as refused:
        decode_request(type_, msgspec.json.encode(members))
    return refused.value


def heartbeat(**members: object) -> HeartbeatRequest:
    """Return a heartbeat as decoded by the broker."""
    return decode_request(HeartbeatRequest, msgspec.json.encode(members))


def test_a_join_needs_a_subscription_and_nothing_else() -> None:
    """A join request needs only a subscription, because the coordinator has defaults for all other fields."""
    by_name = heartbeat(member_epoch=0, topics=["flights"], owned=[])
    by_pattern = heartbeat(member_epoch=0, topic_pattern="fl.*")

    assert by_name.joins
    assert (by_name.topics, by_name.session_timeout_ms) == (("flights",), UNSET)
    assert by_pattern.topic_pattern == "fl.*"


def test_a_later_heartbeat_says_only_what_changed() -> None:
    """A later heartbeat contains only changed fields: an absent field is unchanged, and null restores the default."""
    request = heartbeat(member_epoch=7, topics=None, rack="a", instance_id=None)

    assert not request.joins
    assert (request.topics, request.rack, request.instance_id) == (None, "a", None)
    assert (request.topic_pattern, request.owned) == (UNSET, UNSET)
    assert msgspec.json.decode(msgspec.json.encode(HeartbeatRequest(member_epoch=7))) == {"member_epoch": 7}


def test_owned_partitions_come_by_topic() -> None:
    """Owned partitions in a heartbeat are listed by topic, each topic id once."""
    owned = heartbeat(member_epoch=1, owned=[{"topic_id": TOPIC_ID, "partitions": [0, 5]}]).owned

    assert owned is not UNSET
    assert [(topic.topic_id, topic.partitions) for topic in owned] == [(TOPIC_ID, (0, 5))]


@pytest.mark.parametrize(
    ("members", "code", "named"),
    [
        ({"member_epoch": 0}, "malformed_request", "topics null"),
        ({"member_epoch": 0, "topics": []}, "malformed_request", "topics null"),
        ({"member_epoch": -1, "topics": ["flights"]}, "malformed_request", "member_epoch"),
        ({"member_epoch": 2**31}, "malformed_request", "member_epoch"),
        ({"topics": ["flights"]}, "malformed_request", "member_epoch"),
        (JOIN | {"topics": ["a/b"]}, "invalid_topic_name", "a/b"),
        (JOIN | {"topics": ["flights"] * 1001}, "malformed_request", "topics"),
        (JOIN | {"topic_pattern": ""}, "malformed_request", "topic_pattern"),
        (JOIN | {"topic_pattern": "a" * 1001}, "malformed_request", "topic_pattern"),
        (JOIN | {"instance_id": ""}, "malformed_request", "instance_id ''"),
        (JOIN | {"instance_id": ".."}, "invalid_group_name", ".."),
        (JOIN | {"rack": ""}, "malformed_request", "rack"),
        (JOIN | {"assignor": "sticky"}, "malformed_request", "assignor 'sticky'"),
        (JOIN | {"session_timeout_ms": 999}, "malformed_request", "999"),
        (JOIN | {"session_timeout_ms": -1}, "malformed_request", "-1"),
        (JOIN | {"session_timeout_ms": 1_800_001}, "malformed_request", "1800001"),
        (JOIN | {"session_timeout_ms": 2**70}, "malformed_request", "session_timeout_ms"),
        (JOIN | {"rebalance_timeout_ms": 999}, "malformed_request", "999"),
        (JOIN | {"rebalance_timeout_ms": 3_600_001}, "malformed_request", "3600001"),
        (JOIN | {"rebalance_timeout_ms": 1e9}, "malformed_request", "rebalance_timeout_ms"),
        (JOIN | {"owned": [{"topic_id": TOPIC_ID, "partitions": []}]}, "malformed_request", "join"),
        (JOIN | {"group_id": "g"}, "unknown_option", "group_id"),
        ({"member_epoch": 1, "owned": [{"topic_id": "x", "partitions": []}]}, "malformed_request", "'x'"),
        (
            {"member_epoch": 1, "owned": [{"topic_id": TOPIC_ID, "partitions": [-1]}]},
            "malformed_request",
            "partitions",
        ),
        (
            {"member_epoch": 1, "owned": [{"topic_id": TOPIC_ID, "partitions": []}] * 2},
            "malformed_request",
            "each once",
        ),
    ],
)
def test_a_heartbeat_that_cannot_be_right_is_refused(
    members: dict[str, object], code: str, named: str
) -> None:
    """An invalid heartbeat is refused, and the problem names the field and its value."""
    problem = refusal(HeartbeatRequest, members)

    assert problem.code == code
    assert named in problem.detail


def test_a_refusal_names_field_value_and_what_is_allowed() -> None:
    """A refusal contains the field, the value and the allowed values in its data as well as in its detail."""
    data = refusal(HeartbeatRequest, JOIN | {"assignor": "sticky"}).data

    assert data == {"parameter": "assignor", "value": "sticky", "allowed": "one of uniform, range"}


@pytest.mark.parametrize(("session_ms", "interval_ms"), [(45_000, 5_000), (15_000, 5_000), (1_000, 333)])
def test_members_send_three_heartbeats_a_session(session_ms: int, interval_ms: int) -> None:
    """The heartbeat interval is a third of the session timeout, but at most five seconds."""
    assert heartbeat_interval_ms(session_ms) == interval_ms


def test_members_and_others_commit() -> None:
    """A commit contains both member id and member epoch, or neither."""
    member = decode_request(
        CommitRequest,
        msgspec.json.encode(
            {"member_id": "m-1", "member_epoch": 4, "offsets": [ENTRY | {"leader_epoch": 2}]}
        ),
    )
    other = decode_request(
        CommitRequest, msgspec.json.encode({"offsets": [ENTRY | {"topic_id": TOPIC_ID, "metadata": "x"}]})
    )

    assert (member.member_id, member.member_epoch, member.offsets[0].leader_epoch) == ("m-1", 4, 2)
    assert (other.member_id, other.member_epoch) == (None, -1)
    assert other.offsets == (
        OffsetCommit(topic="flights", topic_id=TOPIC_ID, partition=3, offset=500, metadata="x"),
    )


@pytest.mark.parametrize(
    ("members", "code", "named"),
    [
        ({"offsets": []}, "malformed_request", "offsets"),
        ({"member_id": "m", "offsets": [ENTRY]}, "malformed_request", "member_epoch -1"),
        ({"member_id": "", "offsets": [ENTRY]}, "malformed_request", "member_id"),
        ({"member_epoch": 3, "offsets": [ENTRY]}, "malformed_request", "member_epoch 3"),
        ({"member_epoch": -2, "offsets": [ENTRY]}, "malformed_request", "-2"),
        ({"member_id": "..", "member_epoch": 1, "offsets": [ENTRY]}, "invalid_group_name", ".."),
        ({"offsets": [ENTRY, ENTRY | {"offset": 7}]}, "malformed_request", "flights-3"),
        ({"offsets": [ENTRY | {"topic": "."}]}, "invalid_topic_name", "'.'"),
        ({"offsets": [ENTRY | {"partition": -1}]}, "malformed_request", "partition"),
        ({"offsets": [ENTRY | {"offset": -1}]}, "malformed_request", "offset"),
        ({"offsets": [ENTRY | {"offset": 2**63}]}, "malformed_request", "offset"),
        ({"offsets": [ENTRY | {"metadata": "ü" * 129}]}, "malformed_request", "256 bytes"),
        ({"offsets": [ENTRY | {"retention": 1}]}, "unknown_option", "retention"),
    ],
)
def test_a_commit_that_cannot_be_right_is_refused(members: dict[str, object], code: str, named: str) -> None:
    """An invalid commit is refused, and the problem names the field and its value."""
    problem = refusal(CommitRequest, members)

    assert problem.code == code
    assert named in problem.detail


def test_metadata_is_measured_in_bytes() -> None:
    """The metadata of a commit has at most 256 bytes."""
    entry = OffsetCommit(topic="flights", partition=0, offset=0, metadata="ü" * 128)

    assert len(entry.metadata) == 128


@pytest.mark.parametrize(
    ("to", "position"),
    [
        ("earliest", ResetPosition(ResetKind.EARLIEST)),
        ("latest", ResetPosition(ResetKind.LATEST)),
        ({"timestamp": 1_500}, ResetPosition(ResetKind.TIMESTAMP, 1_500_000)),
        ({"timestamp": "1970-01-01T00:00:02Z"}, ResetPosition(ResetKind.TIMESTAMP, 2_000_000)),
        ({"duration": 250}, ResetPosition(ResetKind.DURATION, 250_000)),
        ({"duration": "10m"}, ResetPosition(ResetKind.DURATION, 600_000_000)),
        ({"duration": "7d"}, ResetPosition(ResetKind.DURATION, 604_800_000_000)),
        ({"shift": -100}, ResetPosition(ResetKind.SHIFT, -100)),
        ({"offset": 0}, ResetPosition(ResetKind.OFFSET, 0)),
    ],
)
def test_a_reset_goes_to_one_position(to: object, position: ResetPosition) -> None:
    """The target position of a reset has one of six forms."""
    assert decode_request(ResetRequest, msgspec.json.encode({"to": to})).position == position


def test_a_reset_names_topics_or_partitions() -> None:
    """A reset names topics or partitions, and resets the whole group if it names neither."""
    request = decode_request(
        ResetRequest,
        msgspec.json.encode({"to": "earliest", "topics": ["a", {"topic": "b", "partition": 2}]}),
    )

    assert request.topics == ("a", ResetPartition(topic="b", partition=2))
    several = [{"topic": "b", "partitions": [0, 1]}, {"topic": "b", "partitions": [2]}]
    parts = decode_request(ResetRequest, msgspec.json.encode({"to": "earliest", "topics": several}))
    assert [part.numbers for part in parts.topics or () if not isinstance(part, str)] == [(0, 1), (2,)]
    assert ResetRequest(to=ResetTarget(offset=7)).topics is None


@pytest.mark.parametrize(
    ("members", "code", "named"),
    [
        ({}, "malformed_request", "to"),
        ({"to": "end"}, "malformed_request", "end"),
        ({"to": {}}, "malformed_request", "exactly one"),
        ({"to": {"shift": 1, "offset": 2}}, "malformed_request", "shift, offset"),
        ({"to": {"offset": -1}}, "malformed_request", "offset"),
        ({"to": {"shift": 2**63}}, "malformed_request", "shift"),
        ({"to": {"timestamp": "yesterday"}}, "malformed_request", "to.timestamp 'yesterday'"),
        ({"to": {"duration": "10 minutes"}}, "malformed_request", "to.duration '10 minutes'"),
        ({"to": {"duration": -5}}, "malformed_request", "to.duration -5"),
        ({"to": {"duration": "999999999999d"}}, "malformed_request", "to.duration"),
        ({"to": {"colour": 1}}, "unknown_option", "colour"),
        ({"to": "earliest", "topics": []}, "malformed_request", "topics"),
        ({"to": "earliest", "topics": ["a/b"]}, "invalid_topic_name", "a/b"),
        ({"to": "earliest", "topics": [{"topic": "..", "partition": 0}]}, "invalid_topic_name", ".."),
        ({"to": "earliest", "topics": ["a", "a"]}, "malformed_request", "topics 'a'"),
        ({"to": "earliest", "topics": [{"topic": "a", "partition": 1}] * 2}, "malformed_request", "a-1"),
        ({"to": "earliest", "topics": [{"topic": "a", "partitions": [2, 0, 2]}]}, "malformed_request", "a-2"),
        ({"to": "earliest", "topics": [{"topic": "a", "partitions": []}]}, "malformed_request", "partitions"),
        ({"to": "earliest", "topics": [{"topic": "a"}]}, "malformed_request", "neither"),
    ],
)
def test_a_reset_that_cannot_be_right_is_refused(members: dict[str, object], code: str, named: str) -> None:
    """An invalid reset is refused, and the problem names the field and its value."""
    problem = refusal(ResetRequest, members)

    assert problem.code == code
    assert named in problem.detail


def large_commit(entries: list[dict[str, object]], **fields: object) -> bytes:
    """Return the body of a commit that is large enough to be decoded in slices."""
    return msgspec.json.encode({"offsets": entries, **fields}).replace(b"[", b"[" + b" " * WHOLE_BYTES_MAX, 1)


@pytest.mark.parametrize("count", [1, 5_000, 10_000])
def test_a_large_commit_is_decoded_like_a_small_one(count: int) -> None:
    """A commit that is large enough to be parsed in slices is decoded to the same request as in one call."""
    entries = [{**ENTRY, "partition": n, "metadata": '{[\\"' * 20} for n in range(count)]
    body = large_commit(entries, member_id="m", member_epoch=4)

    assert decode_commit(body) == decode_request(CommitRequest, body)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="none"),
        pytest.param([{**ENTRY, "partition": n} for n in range(10_001)], id="too many"),
        pytest.param([ENTRY, ENTRY], id="twice"),
        pytest.param([ENTRY, {**ENTRY, "offset": "x"}], id="a wrong type"),
        pytest.param([ENTRY, {**ENTRY, "topic": "?"}], id="a wrong name"),
    ],
)
def test_a_large_commit_is_refused_like_a_small_one(entries: list[dict[str, object]]) -> None:
    """A commit that is parsed in slices is refused with the same problem codes as if it were parsed in one call."""
    body = large_commit(entries)
    codes = []
    for decode in (decode_commit, lambda given: decode_request(CommitRequest, given)):
        with pytest.raises(ProblemError) as refused:
            decode(body)
        codes.append(refused.value.code)

    assert codes[0] == codes[1]


def test_a_small_commit_is_decoded_in_one_call() -> None:
    """A small commit is parsed in one call."""
    body = msgspec.json.encode({"offsets": [ENTRY]})

    assert decode_commit(body).offsets[0].offset == 500
