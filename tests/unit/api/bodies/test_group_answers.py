"""Answers to calls about groups have the form that the contract defines."""

from __future__ import annotations

import msgspec

from fairlead_api.bodies.group_answers import (
    AssignedPartitions,
    CommitAnswer,
    CommitResult,
    GroupDescription,
    GroupListing,
    GroupSummary,
    HeartbeatAnswer,
    LagAnswer,
    MemberDescription,
    PartitionLag,
)

TOPIC_ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"


def test_an_assignment_that_did_not_change_is_null() -> None:
    """An unchanged assignment is null in the answer to a heartbeat."""
    answer = HeartbeatAnswer(member_epoch=2, heartbeat_interval_ms=5000, session_timeout_ms=45_000)

    assert msgspec.to_builtins(answer) == {
        "member_epoch": 2,
        "heartbeat_interval_ms": 5000,
        "session_timeout_ms": 45_000,
        "assignment": None,
    }


def test_a_stored_offset_has_no_problem() -> None:
    """A committed offset has no problem in the answer, and a refused offset has only its problem."""
    answer = CommitAnswer(
        offsets=[
            CommitResult(topic="a", topic_id=TOPIC_ID, partition=0),
            CommitResult(topic="b", topic_id=None, partition=1, problem={"code": "topic_not_found"}),
        ]
    )

    assert msgspec.to_builtins(answer)["offsets"] == [
        {"topic": "a", "topic_id": TOPIC_ID, "partition": 0},
        {"topic": "b", "topic_id": None, "partition": 1, "problem": {"code": "topic_not_found"}},
    ]


def test_a_listing_is_a_page() -> None:
    """The list of groups is a page, like every list of the contract."""
    page = msgspec.json.decode(
        b'{"items": [{"group": "g", "coordinator": null}], "next": "c"}', type=GroupListing
    )

    assert (page.items, page.next) == ([GroupSummary(group="g", coordinator=None)], "c")


def test_a_description_survives_the_wire() -> None:
    """The description of a group is read back from JSON, even with members that a later release has added."""
    assignment = [AssignedPartitions(topic="a", topic_id=TOPIC_ID, partitions=[0, 2])]
    group = GroupDescription(
        group="g",
        state="stable",
        epoch=3,
        assignor="uniform",
        coordinator=1,
        members=[
            MemberDescription(
                member_id="m", instance_id=None, member_epoch=3, topics=["a"], assignment=assignment
            )
        ],
    )
    sent = msgspec.to_builtins(group) | {"colour": "red"}

    assert msgspec.json.decode(msgspec.json.encode(sent), type=GroupDescription) == group


def test_lag_may_be_unknown() -> None:
    """The lag of a partition that could not be queried is null, and the other partitions are still reported."""
    lag = LagAnswer(
        group="g",
        lag=[
            PartitionLag(
                topic="a",
                topic_id=TOPIC_ID,
                partition=0,
                committed_offset=5,
                high_watermark=None,
                lag_records=None,
                lag_seconds=None,
                member_id="m",
                problem={"code": "no_leader"},
            )
        ],
        total_records=0,
        max_seconds=0.0,
    )

    assert msgspec.json.decode(msgspec.json.encode(lag), type=LagAnswer) == lag
