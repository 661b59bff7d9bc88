"""Offsets that a broker forwards to the coordinator of a group, which compares them with the stored offsets."""

from __future__ import annotations

import pytest

from fairlead_api.bodies.requests import decode_request
from fairlead_api.bodies.transactions import CommitTransactionRequest
from fairlead_api.identifiers import TopicId
from fairlead_broker.kafka.calls.transaction_sessions import request_of
from fairlead_broker.peers import messages
from fairlead_broker.registry.transaction_records import PendingOffset, PendingOffsets
from fairlead_broker.server.admin.transactions import pending_of


@pytest.mark.parametrize(("member", "member_epoch", "leader_epoch"), [(None, -1, None), ("m-1", 3, 7)])
def test_forwarded_offsets_are_recognised(
    member: str | None, member_epoch: int, leader_epoch: int | None
) -> None:
    """The coordinator reads exactly the offsets that the client of Kafka's protocol added to its transaction."""
    offset = PendingOffset(
        topic="orders",
        topic_id=TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"),
        partition=3,
        offset=17,
        leader_epoch=leader_epoch,
        metadata="näher",
    )
    pending = PendingOffsets(group="billing", member_id=member, member_epoch=member_epoch, offsets=(offset,))
    body = messages.encode(CommitTransactionRequest(offsets=request_of(pending)))
    received = decode_request(CommitTransactionRequest, body).offsets

    assert received is not None
    assert pending_of(received) == pending
