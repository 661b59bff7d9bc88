"""Bodies of the calls about transactions."""

from __future__ import annotations

import pytest

from fairlead_api.bodies.json_bodies import Request, decode_request
from fairlead_api.bodies.transactions import (
    METADATA_BYTES_MAX,
    BeginRequest,
    CommitTransactionRequest,
    JointCommitRequest,
    JointTransaction,
    TopicPartitions,
)
from fairlead_api.problems import ProblemError

TOPIC_ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"


def test_requests_have_defaults() -> None:
    """A begin request has no name and a timeout of a minute by default, and a commit request may be empty."""
    begin = decode_request(BeginRequest, b"{}")
    commit = decode_request(
        CommitTransactionRequest, b'{"partitions": [{"topic": "a", "partitions": [0, 2]}]}'
    )

    assert (begin.name, begin.timeout_ms, begin.above) == (None, 60_000, None)
    assert decode_request(BeginRequest, b'{"name": "billing"}').name == "billing"
    assert decode_request(CommitTransactionRequest, b'{"metadata": "m"}').metadata == "m"
    assert commit.partitions == (TopicPartitions(topic="a", partitions=(0, 2)),)


def test_different_producers_commit_together() -> None:
    """A joint commit contains transactions of different producers, even if their epochs are equal."""
    joint = decode_request(
        JointCommitRequest,
        b'{"transactions": [{"transaction": "17.4", "metadata": "m"}, {"transaction": "18.4"}]}',
    )

    assert joint.transactions == (
        JointTransaction(transaction="17.4", metadata="m"),
        JointTransaction(transaction="18.4"),
    )


@pytest.mark.parametrize(
    ("type_", "body", "code"),
    [
        (BeginRequest, b'{"name": ".."}', "invalid_transaction"),
        (BeginRequest, b'{"timeout_ms": 999}', "invalid_transaction"),
        (BeginRequest, b'{"above": -1}', "malformed_request"),
        (BeginRequest, b'{"colour": "red"}', "unknown_option"),
        (CommitTransactionRequest, b'{"partitions": [{"partitions": [0]}]}', "malformed_request"),
        (
            CommitTransactionRequest,
            b'{"partitions": [{"topic": "a", "partitions": []}]}',
            "malformed_request",
        ),
        (
            CommitTransactionRequest,
            b'{"offsets": {"group": "..", "offsets": [{"topic": "a", "partition": 0, "offset": 1}]}}',
            "invalid_group_name",
        ),
        (CommitTransactionRequest, b'{"offsets": {"group": "g", "offsets": []}}', "malformed_request"),
        (
            CommitTransactionRequest,
            b'{"offsets": {"group": "g", "member_id": "m",'
            b' "offsets": [{"topic": "a", "partition": 0, "offset": 1}]}}',
            "malformed_request",
        ),
        (
            CommitTransactionRequest,
            b'{"metadata": "%s"}' % (b"m" * (METADATA_BYTES_MAX + 1)),
            "malformed_request",
        ),
        (JointCommitRequest, b'{"transactions": []}', "malformed_request"),
        (
            JointCommitRequest,
            b'{"transactions": [{"transaction": "17.4", "metadata": "%s"}]}'
            % (b"m" * (METADATA_BYTES_MAX + 1)),
            "malformed_request",
        ),
        (
            JointCommitRequest,
            b'{"transactions": [{"transaction": "17.4"}, {"transaction": "17.5"}]}',
            "malformed_request",
        ),
    ],
)
def test_invalid_requests_are_refused(type_: type[Request], body: bytes, code: str) -> None:
    """A request with a value that is never allowed is refused."""
    with pytest.raises(ProblemError) as refused:
        decode_request(type_, body)

    assert refused.value.code == code
