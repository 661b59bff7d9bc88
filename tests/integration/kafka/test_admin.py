"""librdkafka's admin client: topics, configuration, partitions, records, groups and the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from broker_kit import Calls
from kafka_kit import SECONDS_MAX, StartBroker, consumed, kafka_address, produced

T = TypeVar("T")
CONFIG_TOPIC_SOURCE, CONFIG_DEFAULT_SOURCE = 1, 5


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    """Admin client of a new broker."""
    return AdminClient({"bootstrap.servers": bootstrap})


async def run(work: Callable[..., T], *arguments: Any) -> T:
    """Return the result of blocking work."""
    return await asyncio.to_thread(work, *arguments)


def outcome(futures: dict[Any, Any]) -> Any:
    """Return the result of the only future, or the code of its error."""
    [future] = futures.values()
    try:
        return future.result(SECONDS_MAX)
    except KafkaException as error:
        return error.args[0].code()


def described(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    """Return the configuration of a resource."""
    found: dict[str, ConfigEntry] = outcome(admin.describe_configs([ConfigResource(kind, name)]))
    return found


async def test_topics_are_created_enlarged_and_deleted(admin: AdminClient) -> None:
    """A topic is created once with its configuration and gets partitions; after its deletion, its name is free."""
    new = NewTopic("orders", num_partitions=2, replication_factor=1, config={"retention.ms": "1000"})

    def steps() -> list[Any]:
        created = [outcome(admin.create_topics([new])), outcome(admin.create_topics([new]))]
        enlarged = [outcome(admin.create_partitions([NewPartitions("orders", count)])) for count in (5, 5)]
        partitions = len(admin.list_topics("orders", SECONDS_MAX).topics["orders"].partitions)
        retention = described(admin, ResourceType.TOPIC, "orders")["retention.ms"]
        deleted = [outcome(admin.delete_topics(["orders"])), outcome(admin.delete_topics(["orders"]))]
        return [created, enlarged, partitions, (retention.value, retention.source), deleted]

    created, enlarged, partitions, retention, deleted = await run(steps)

    assert created == [None, KafkaError.TOPIC_ALREADY_EXISTS]
    assert enlarged == [None, KafkaError.INVALID_PARTITIONS]
    assert partitions == 5
    assert retention == ("1000", CONFIG_TOPIC_SOURCE)
    assert deleted == [None, KafkaError.UNKNOWN_TOPIC_OR_PART]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("a/b", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("many", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("none", 0, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("huge", 20_000, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("placed", 1, replica_assignment=[[1]]), KafkaError.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("odd", 1, 1, config={"no.such.key": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("bad", 1, 1, config={"retention.ms": "x"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: value.topic if isinstance(value, NewTopic) else "",
)
async def test_topics_that_cannot_be_created_are_refused(
    admin: AdminClient, topic: NewTopic, code: int
) -> None:
    """Each reason for a refusal has Kafka's error, even if the request is only validated."""
    refused = [
        await run(lambda validate=validate: outcome(admin.create_topics([topic], validate_only=validate)))
        for validate in (True, False)
    ]

    assert refused == [code, code]
    assert topic.topic not in await run(lambda: admin.list_topics(timeout=SECONDS_MAX).topics)


async def test_internal_topics_are_marked(admin: AdminClient) -> None:
    """Consumers of a pattern leave out internal topics, whose names begin with two underscores."""
    names = ["orders", "__internal"]

    def steps() -> dict[str, bool]:
        for name in names:
            outcome(admin.create_topics([NewTopic(name, 1, 1)]))
        shown = admin.describe_topics(TopicCollection(names))
        return {name: future.result(SECONDS_MAX).is_internal for name, future in shown.items()}

    assert await run(steps) == {"orders": False, "__internal": True}


async def test_keys_are_set_extended_and_reset(admin: AdminClient) -> None:
    """Operations on single keys of a topic and of a broker take effect, and refused operations change nothing."""

    def altered(kind: ResourceType, name: str, *entries: tuple[str, str | None, AlterConfigOpType]) -> Any:
        changes = [
            ConfigEntry(key, value, incremental_operation=operation) for key, value, operation in entries
        ]
        resource = ConfigResource(kind, name, incremental_configs=changes)
        return outcome(admin.incremental_alter_configs([resource]))

    def steps() -> list[Any]:
        outcome(admin.create_topics([NewTopic("orders", 1, 1)]))
        topic, broker = ResourceType.TOPIC, ResourceType.BROKER
        put, drop, more = AlterConfigOpType.SET, AlterConfigOpType.DELETE, AlterConfigOpType.APPEND
        changed = [
            altered(topic, "orders", ("retention.ms", "7", put), ("segment.ms", "9000", put)),
            altered(topic, "orders", ("segment.ms", None, drop), ("cleanup.policy", "compact", more)),
            altered(broker, "0", ("log.retention.check.interval.ms", "60000", put)),
            altered(topic, "orders", ("retention.ms", "1", more)),
            altered(topic, "absent", ("retention.ms", "1", put)),
        ]
        values = described(admin, topic, "orders")
        own = described(admin, broker, "0")
        picked = {key: values[key].value for key in ("retention.ms", "cleanup.policy")}
        return [changed, picked, values, own]

    changed, set_values, values, own = await run(steps)

    assert changed[:3] == [None, None, None]
    assert changed[3:] == [KafkaError.INVALID_CONFIG, KafkaError.UNKNOWN_TOPIC_OR_PART]
    assert set_values == {"retention.ms": "7", "cleanup.policy": "delete,compact"}
    assert values["segment.ms"].source == CONFIG_DEFAULT_SOURCE
    assert own["log.retention.check.interval.ms"].value == "60000"


@pytest.mark.filterwarnings("ignore:alter_configs:DeprecationWarning")
async def test_the_old_call_replaces_all_keys(admin: AdminClient) -> None:
    """AlterConfigs resets the keys that it does not name."""

    def steps() -> dict[str, ConfigEntry]:
        config = {"retention.ms": "1000", "segment.ms": "9000"}
        outcome(admin.create_topics([NewTopic("orders", 1, 1, config=config)]))
        resource = ConfigResource(ResourceType.TOPIC, "orders", set_config={"retention.ms": "2000"})
        outcome(admin.alter_configs([resource]))
        return described(admin, ResourceType.TOPIC, "orders")

    values = await run(steps)

    assert (values["retention.ms"].value, values["retention.ms"].source) == ("2000", CONFIG_TOPIC_SOURCE)
    assert values["segment.ms"].source == CONFIG_DEFAULT_SOURCE


async def test_records_are_deleted_up_to_an_offset(bootstrap: str, admin: AdminClient) -> None:
    """After a deletion, records below the offset are gone, and the answer contains the new log start offset."""
    await run(produced, bootstrap, "orders", [{"value": b"%d" % number} for number in range(10)])

    def steps() -> list[Any]:
        place = TopicPartition("orders", 0, 4)
        beyond = TopicPartition("orders", 0, 99)
        earliest = {TopicPartition("orders", 0): OffsetSpec.earliest()}
        return [
            outcome(admin.delete_records([place])).low_watermark,
            outcome(admin.delete_records([beyond])),
            outcome(admin.list_offsets(earliest)).offset,
        ]

    found = await run(steps)

    assert found == [4, KafkaError.OFFSET_OUT_OF_RANGE, 4]
    [first] = await run(consumed, bootstrap, "orders", 1, 4)
    assert first.value() == b"4"


async def test_the_cluster_is_described(admin: AdminClient, bootstrap: str) -> None:
    """The cluster's description names its broker as controller and the operations that the caller may carry out."""

    def steps() -> Any:
        return admin.describe_cluster(include_authorized_operations=True).result(SECONDS_MAX)

    cluster = await run(steps)

    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id
    assert {each.name for each in cluster.authorized_operations} >= {"ALTER", "DESCRIBE", "CREATE"}


async def test_offsets_of_groups_are_altered_and_groups_described(bootstrap: str, admin: AdminClient) -> None:
    """Committed offsets of a group without members are read and changed, and the group is described."""
    await run(produced, bootstrap, "orders", [{"value": b"v"}] * 5)

    def steps() -> list[Any]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
        consumer.close()
        wanted = ConsumerGroupTopicPartitions("billing", [TopicPartition("orders", 0, 1)])
        outcome(admin.alter_consumer_group_offsets([wanted]))
        offsets = outcome(
            admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("billing")])
        ).topic_partitions
        group = outcome(admin.describe_consumer_groups(["billing"], include_authorized_operations=True))
        return [[(each.topic, each.offset) for each in offsets], group.state.name]

    offsets, state = await run(steps)

    assert offsets == [("orders", 1)]
    assert state == "EMPTY"


async def test_changes_by_kafka_clients_are_in_the_audit_log(
    start: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that a Kafka client creates has the same line in the audit log as one created over HTTP."""
    running = await start()
    admin = AdminClient({"bootstrap.servers": kafka_address(running)})

    await run(lambda: outcome(admin.create_topics([NewTopic("orders", 2, 1)])))

    [line] = [each.getMessage() for each in caplog.records if each.name == "fairlead.audit"]
    assert '"event":"admin"' in line
    assert '"route":"kafka:CreateTopics"' in line
    assert '"topic":"orders","partitions":2' in line
    assert running.addresses.data is not None
    async with Calls(running.addresses.data) as calls:
        assert (await calls.call("GET", "/v1/topics/orders")).json["partitions"] == 2
