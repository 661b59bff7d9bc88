"""Static members of classic groups that another process with the same instance id has replaced."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from kafka_kit import produced
from kafka_wire import KafkaConnection


async def joined(connection: KafkaConnection) -> Any:
    """Join the group as the instance `first`, sync as its leader, and return the answer to the join."""
    member = await connection.ask(
        ApiKey.JOIN_GROUP, 5,
        group_id="billing", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
        group_instance_id="first", protocol_type="consumer", protocols=[{"name": "range", "metadata": b"s"}],
    )  # fmt: skip
    assert member.error_code == KafkaError.NONE
    await connection.ask(
        ApiKey.SYNC_GROUP, 3,
        group_id="billing", generation_id=member.generation_id, member_id=member.member_id,
        group_instance_id="first", assignments=[{"member_id": member.member_id, "assignment": b"a"}],
    )  # fmt: skip
    return member


@pytest.mark.parametrize(
    ("instance_id", "expected"),
    [("first", KafkaError.FENCED_INSTANCE_ID), (None, KafkaError.UNKNOWN_MEMBER_ID)],
)
async def test_a_replaced_process_is_fenced_when_it_commits(
    bootstrap: str, instance_id: str | None, expected: KafkaError
) -> None:
    """A commit of the earlier process, in a transaction or not, names the reason, and the later process commits."""
    await asyncio.to_thread(produced, bootstrap, "orders", [{"value": b"v"}])
    partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    common = {"group_id": "billing", "topics": [{"name": "orders", "partitions": [partition]}]}
    async with KafkaConnection.open(bootstrap) as connection:
        before, after = await joined(connection), await joined(connection)

        async def error_of(
            key: ApiKey, version: int, member: Any, instance: str | None, **fields: Any
        ) -> int:
            generation = (
                "generation_id" if key is ApiKey.TXN_OFFSET_COMMIT else "generation_id_or_member_epoch"
            )
            stated = {generation: member.generation_id, "group_instance_id": instance}
            answer = await connection.ask(
                key, version, member_id=member.member_id, **stated, **common, **fields
            )
            error: int = answer.topics[0].partitions[0].error_code
            return error

        found = await error_of(ApiKey.OFFSET_COMMIT, 7, before, instance_id)
        transaction = {"transactional_id": "copy", "producer_id": 1, "producer_epoch": 0}
        pending = await error_of(ApiKey.TXN_OFFSET_COMMIT, 3, before, instance_id, **transaction)
        stored = await error_of(ApiKey.OFFSET_COMMIT, 7, after, "first")

    assert before.member_id != after.member_id
    assert (found, pending) == (expected, expected)
    assert stored == KafkaError.NONE
