"""Requests of Kafka's protocol that repeat a name: each name is answered once, so the response stays small."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from kafka_kit import StartBroker, kafka_address
from kafka_wire import KafkaConnection

TIMES = 2_000
PARTITIONS = 100
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


@pytest.fixture
async def connection(start: StartBroker) -> AsyncIterator[KafkaConnection]:
    """Yield a connection to a broker with a topic of many partitions."""
    async with KafkaConnection.open(kafka_address(await start())) as opened:
        topic = {"name": "x", "num_partitions": PARTITIONS, "replication_factor": 1}
        await opened.ask(
            ApiKey.CREATE_TOPICS, 7, topics=[{**topic, "assignments": [], "configs": []}], timeout_ms=10_000
        )
        yield opened


async def test_a_repeated_name_is_answered_once(connection: KafkaConnection) -> None:
    """The response has one entry for each distinct topic, group, transaction and partition."""
    groups = [f"g{at % 2}" for at in range(TIMES)]
    topics: list[dict[str, Any]] = [{"name": "x"}, {"name": "y"}] * TIMES
    metadata = await connection.ask(ApiKey.METADATA, 9, topics=topics, allow_auto_topic_creation=False)
    described = await connection.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=groups)
    consumers = await connection.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, group_ids=groups)
    deleted = await connection.ask(ApiKey.DELETE_GROUPS, 2, groups_names=groups)
    transactions = await connection.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=groups)
    coordinators = await connection.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=groups)
    quorum_topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}] * 2}
    quorum = await connection.ask(ApiKey.DESCRIBE_QUORUM, 1, topics=[quorum_topic] * TIMES)
    producers = await connection.ask(
        ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": "x", "partition_indexes": [3, 5, 3]}] * TIMES
    )
    offsets = await connection.ask(
        ApiKey.OFFSET_FETCH,
        8,
        groups=[{"group_id": "g0", "topics": [{"name": "x", "partition_indexes": [3, 5, 3]}] * TIMES}],
    )

    assert [(each.name, len(each.partitions)) for each in metadata.topics] == [("x", PARTITIONS), ("y", 0)]
    assert [each.group_id for each in described.groups] == ["g0", "g1"]
    assert [each.group_id for each in consumers.groups] == ["g0", "g1"]
    assert [each.group_id for each in deleted.results] == ["g0", "g1"]
    assert [each.transactional_id for each in transactions.transaction_states] == ["g0", "g1"]
    assert [each.key for each in coordinators.coordinators] == ["g0", "g1"]
    assert [[each.partition_index for each in topic.partitions] for topic in quorum.topics] == [[0]]
    assert [[each.partition_index for each in topic.partitions] for topic in producers.topics] == [[3, 5]]
    [group] = offsets.groups
    assert [[each.partition_index for each in topic.partitions] for topic in group.topics] == [[3, 5]]


async def test_a_repeated_resource_or_group_of_offsets_is_refused(connection: KafkaConnection) -> None:
    """Configurations, and the offsets of a group, are refused once if the request names their key repeatedly."""
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": "x"}
    asked = {**resource, "configuration_keys": None}
    configs = await connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked] * TIMES)
    single = await connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked])
    altered = await connection.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[{**resource, "configs": []}] * 2, validate_only=False
    )
    brokers = [{**asked, "resource_type": BROKER_RESOURCE, "resource_name": name} for name in ("0", "00")]
    padded = await connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=brokers)
    offsets = await connection.ask(ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": "g", "topics": None}] * TIMES)

    assert [(each.error_code, each.configs) for each in configs.results] == [(KafkaError.INVALID_REQUEST, [])]
    assert single.results[0].error_code == KafkaError.NONE
    assert single.results[0].configs
    assert [each.error_code for each in padded.results] == [KafkaError.NONE, KafkaError.INVALID_REQUEST]
    assert [each.error_code for each in altered.responses] == [KafkaError.INVALID_REQUEST]
    assert [(each.group_id, each.error_code) for each in offsets.groups] == [
        ("g", KafkaError.INVALID_REQUEST)
    ]
