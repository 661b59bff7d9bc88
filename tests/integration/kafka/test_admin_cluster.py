"""Administration by Kafka's clients in a cluster: any broker accepts a change, and replicas move between brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker_kit import FREE
from cluster_kit import until
from fairlead import Admin
from fairlead_api.identifiers import PartitionIndex
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import LocalCluster, start_local_cluster
from kafka_kit import kafka_address
from kafka_wire import KafkaConnection

PREFERRED = 0
SET = 0
BROKER_RESOURCE = 4
P0 = PartitionIndex(0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Three brokers with Kafka listeners."""
    settings = [
        BrokerSettings(
            data=tmp_path / str(broker),
            id=broker,
            listen=FREE,
            peer_listen=FREE,
            ops_listen=FREE,
            kafka_listen=FREE,
        )
        for broker in range(3)
    ]
    running = await start_local_cluster(settings, tmp_path / "store")
    yield running
    await running.stop()


@pytest.fixture
async def connection(cluster: LocalCluster) -> AsyncIterator[KafkaConnection]:
    """Connection to a broker that is not the controller."""
    controller = cluster.brokers[0].broker.peer_side.controller
    other = next(each for each in cluster.brokers if each.broker.peer_side.peers.own.broker != controller)
    async with KafkaConnection.open(kafka_address(other)) as opened:
        yield opened


async def create(connection: KafkaConnection, name: str, partitions: int = 1) -> Any:
    """Create a topic with two replicas and return its result."""
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 2}
    answer = await connection.ask(
        ApiKey.CREATE_TOPICS, 7, topics=[{**topic, "assignments": [], "configs": []}], timeout_ms=1000
    )
    return answer.topics[0]


async def test_brokers_report_their_disk_and_their_listener(
    cluster: LocalCluster, connection: KafkaConnection
) -> None:
    """Any broker returns the disk space, the Kafka address and the open connections of each running broker."""
    await connection.ask(ApiKey.API_VERSIONS, 0)
    async with Admin(f"http://{cluster.brokers[0].addresses.data}") as admin:
        reports = await admin.broker_reports()
        await cluster.brokers[2].stop()
        left = await admin.broker_reports()

    listeners = [each.kafka for each in reports if each.kafka is not None]
    assert [each.broker for each in reports] == [0, 1, 2]
    assert [each.address for each in listeners] == [kafka_address(each) for each in cluster.brokers]
    assert sum(each.connections for each in listeners) == 1
    assert {each.tls for each in listeners} == {False}
    assert all(0 < (each.disk_free_bytes or 0) < (each.disk_total_bytes or 0) for each in reports)
    assert [each.broker for each in left if each.disk_free_bytes is not None] == [0, 1]


async def test_any_broker_takes_changes(connection: KafkaConnection) -> None:
    """A broker that is not the controller creates topics, changes the cluster, and deletes a topic by its id."""
    setting = {
        "resource_type": BROKER_RESOURCE,
        "resource_name": "",
        "configs": [{"name": "num.partitions", "config_operation": SET, "value": "4"}],
    }
    created, again = await create(connection, "orders"), await create(connection, "orders")
    configured = await connection.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[setting], validate_only=False
    )
    wide = await create(connection, "wide", partitions=-1)
    deleted = await connection.ask(
        ApiKey.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": created.topic_id}]
    )

    assert (created.error_code, again.error_code) == (KafkaError.NONE, KafkaError.TOPIC_ALREADY_EXISTS)
    assert configured.responses[0].error_code == KafkaError.NONE
    assert wide.num_partitions == 4
    assert [each.error_code for each in deleted.responses] == [KafkaError.NONE]


async def test_a_client_chooses_the_brokers_of_partitions(connection: KafkaConnection) -> None:
    """Partitions of a new topic and added partitions lie on the brokers that the requests name."""

    def chosen(*replicas: list[int], **counts: int) -> dict[str, Any]:
        assignments = [{"partition_index": n, "broker_ids": each} for n, each in enumerate(replicas)]
        sizes = {"num_partitions": -1, "replication_factor": -1, **counts}
        return {"name": "placed", **sizes, "assignments": assignments, "configs": []}

    async def created(topic: dict[str, Any]) -> int:
        answer = await connection.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=1000)
        code: int = answer.topics[0].error_code
        return code

    async def added(count: int, *replicas: list[int]) -> int:
        topic = {"name": "placed", "count": count, "assignments": [{"broker_ids": each} for each in replicas]}
        answer = await connection.ask(ApiKey.CREATE_PARTITIONS, 3, topics=[topic], timeout_ms=1000)
        code: int = answer.results[0].error_code
        return code

    gap = chosen([0], [1])
    gap["assignments"][1]["partition_index"] = 2
    refused = [
        await created(each) for each in (chosen([0, 77]), chosen([]), chosen([0], num_partitions=1), gap)
    ]
    done = await created(chosen([2, 0], [0, 1]))
    refused += [await added(3, [1, 2], [0, 1]), await added(3, [1]), await added(3, [-1, 0])]
    grown = await added(3, [1, 2])
    [topic] = (await connection.ask(ApiKey.METADATA, 12, topics=[{"name": "placed"}])).topics
    replicas = {each.partition_index: list(each.replica_nodes) for each in topic.partitions}

    wrong = KafkaError.INVALID_REPLICA_ASSIGNMENT
    assert refused == [wrong, wrong, KafkaError.INVALID_REQUEST, *[wrong] * 4]
    assert (done, grown) == (KafkaError.NONE, KafkaError.NONE)
    assert replicas == {0: [2, 0], 1: [0, 1], 2: [1, 2]}


async def move(connection: KafkaConnection, replicas: list[int] | None) -> int:
    """Move the topic `orders`, or cancel its move, and return the error."""
    answer = await connection.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        1,
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "replicas": replicas}]}],
    )
    code: int = answer.responses[0].partitions[0].error_code
    return code


async def elect(connection: KafkaConnection) -> int:
    """Elect the preferred leader of the topic `orders` and return the error."""
    answer = await connection.ask(
        ApiKey.ELECT_LEADERS,
        2,
        election_type=PREFERRED,
        topic_partitions=[{"topic": "orders", "partitions": [0]}],
        timeout_ms=1000,
    )
    code: int = answer.replica_election_results[0].partition_result[0].error_code
    return code


async def test_replicas_move_and_leaders_are_elected(
    cluster: LocalCluster, connection: KafkaConnection
) -> None:
    """A partition moves to other brokers and gets its preferred leader; impossible requests get Kafka's errors."""

    async def state() -> tuple[int, list[int]]:
        [topic] = (await connection.ask(ApiKey.METADATA, 12, topics=[{"name": "orders"}])).topics
        [partition] = topic.partitions
        return partition.leader_id, list(partition.replica_nodes)

    await create(connection, "orders")
    leader, replicas = await state()
    [added] = {0, 1, 2} - set(replicas)
    target = [added, replicas[0]]
    begun = await move(connection, target)
    views = [each.broker.views for each in cluster.brokers]
    await until(
        lambda: all(
            [each.broker for each in view.by_name("orders").partitions[P0].replicas] == target
            for view in views
        ),
        "the move does not end",
    )
    elections = [await elect(connection), await elect(connection)]
    leader_after, _ = await state()
    refused = [await move(connection, None), await move(connection, [0, 77])]

    assert leader == replicas[0]
    assert begun == KafkaError.NONE
    assert elections == [KafkaError.NONE, KafkaError.ELECTION_NOT_NEEDED]
    assert leader_after == added
    assert refused == [KafkaError.NO_REASSIGNMENT_IN_PROGRESS, KafkaError.INVALID_REPLICA_ASSIGNMENT]
