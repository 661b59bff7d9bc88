"""Changed configuration of topics, brokers and the cluster: changes apply at once, and values have their sources."""

from __future__ import annotations

import pytest

from fairlead.errors import BrokerNotFoundError, InvalidConfigError
from fairlead_api.configuration import ConfigEntry, ConfigSource
from fairlead_api.identifiers import PartitionIndex
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import ConfigRecord, encode
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from refusals import raises

MIB = 1 << 20
YEAR_MS = 365 * 24 * 3_600_000


def partition_of(api, topic: str) -> LeaderReplica:
    """Return the running replica of partition 0."""
    runtime = api.running.broker
    found = runtime.replicas.find(runtime.views.by_name(topic).topic_id, PartitionIndex(0))
    assert isinstance(found, LeaderReplica)
    return found


async def test_retention_of_a_live_topic(api, clock) -> None:
    """A topic's retention is a week by default, and after a change to a minute the old segment is deleted."""
    await api.admin.create_topic("flights", config={"segment.ms": 1000})
    await api.produce("flights", "a")
    clock.move(120)
    await api.looks()
    before = await api.start_and_end("flights")
    changed = await api.admin.alter_topic("flights", config={"retention.ms": 60_000})
    await api.begins_at("flights", 1)
    described = await api.admin.describe_topic("flights")
    reset = await api.admin.alter_topic("flights", config={"retention.ms": None})

    assert before == (0, 1)
    assert changed.config["retention.ms"] == ConfigEntry("60000", ConfigSource.TOPIC)
    assert described.config == changed.config
    assert reset.config["retention.ms"] == ConfigEntry("604800000", ConfigSource.DEFAULT)


async def test_segment_bytes_of_a_live_topic(api, lives) -> None:
    """A change of a topic's segment.bytes starts a new segment with the next batch that does not fit."""
    topic = await api.admin.create_topic("flights")
    await api.produce("flights", "x" * (3 * MIB // 2))
    await api.admin.alter_topic("flights", config={"segment.bytes": MIB})
    await api.produce("flights", "a")

    assert [int(path.stem) for path in lives.segments(topic.topic_id)] == [0, 1]


async def test_max_message_bytes_of_a_live_topic(api) -> None:
    """A topic's max.message.bytes applies at once: a batch is refused after a decrease, accepted after an increase."""
    await api.admin.create_topic("flights")
    first = await api.produce("flights", "x" * 10_000)
    await api.admin.alter_topic("flights", config={"max.message.bytes": 5000})
    second = await api.produce("flights", "x" * 10_000)
    await api.admin.alter_topic("flights", config={"max.message.bytes": None})
    third = await api.produce("flights", "x" * 10_000)

    assert (first.status, second.json["code"], third.status) == (200, "batch_too_large", 200)


async def test_time_stamps_of_a_live_topic(api, clock) -> None:
    """Changes of a topic's timestamp type and timestamp window apply from the next batch on."""
    await api.admin.create_topic("flights")
    now_ms = clock.now_us() // 1000
    old = now_ms - YEAR_MS
    taken = await api.produce("flights", "a", timestamp=old)
    await api.admin.alter_topic("flights", config={"message.timestamp.before.max.ms": 1000})
    too_old = await api.produce("flights", "a", timestamp=old)
    await api.admin.alter_topic("flights", config={"message.timestamp.after.max.ms": 2 * YEAR_MS})
    ahead = await api.produce("flights", "a", timestamp=now_ms + YEAR_MS)
    await api.admin.alter_topic("flights", config={"message.timestamp.type": "LogAppendTime"})
    appended = await api.produce("flights", "a", timestamp=old)
    records = (await api.fetch("flights", "earliest")).json["records"]

    assert (taken.status, too_old.json["code"], ahead.status, appended.status) == (
        200,
        "invalid_record",
        200,
        200,
    )
    assert records[2]["timestamp"] == appended.json["log_append_time"]
    assert records[0]["timestamp"] < records[1]["timestamp"]


async def test_flushing_of_a_live_topic(api) -> None:
    """A topic with `replicated` durability is synced only by flush.messages or flush.ms."""
    await api.admin.create_topic("flights", config={"durability": "replicated"})
    log = partition_of(api, "flights").log

    async def synced() -> bool:
        return log.synced_offset == log.end_offset

    await api.produce("flights", "a")
    unsynced = log.end_offset - log.synced_offset
    await api.admin.alter_topic("flights", config={"flush.messages": 1})
    await api.produce("flights", "b")
    await api.until(synced)
    await api.admin.alter_topic("flights", config={"flush.messages": None, "flush.ms": 20})
    await api.produce("flights", "c")
    await api.until(synced)

    assert unsynced == 1


async def test_durability_of_a_live_topic(api) -> None:
    """A topic changes from replicated through syncing to synced, and its acknowledged records are then on the disk."""
    await api.admin.create_topic("flights", config={"durability": "replicated"})
    await api.produce("flights", "a")
    await api.admin.alter_topic("flights", config={"durability": "synced"})
    partition = partition_of(api, "flights")
    topic_id = api.running.broker.views.by_name("flights").topic_id

    async def is_synced() -> bool:
        records = api.running.broker.metadata.partitions(topic_id)
        return records[PartitionIndex(0)].value.durability == "synced"

    await api.until(is_synced)
    await api.produce("flights", "b")

    assert partition.log.synced_offset == partition.log.end_offset == 2


async def test_the_nearest_value_holds(api) -> None:
    """A topic's value overrides the broker's, the cluster's and the default, and each level can be reset."""
    await api.admin.create_topic("flights")
    key = "retention.ms"
    shown = [(await api.admin.describe_topic("flights")).config[key]]
    await api.admin.alter_cluster_config({key: 1_000_000})
    shown.append((await api.admin.describe_topic("flights")).config[key])
    await api.admin.alter_broker_config(0, {key: 2_000_000})
    shown.append((await api.admin.describe_topic("flights")).config[key])
    await api.admin.alter_topic("flights", config={key: 3_000_000})
    shown.append((await api.admin.describe_topic("flights")).config[key])
    in_force = partition_of(api, "flights").config.retention_ms
    await api.admin.alter_topic("flights", config={key: None})
    await api.admin.alter_broker_config(0, {key: None})
    shown.append((await api.admin.describe_topic("flights")).config[key])

    assert shown == [
        ConfigEntry("604800000", ConfigSource.DEFAULT),
        ConfigEntry("1000000", ConfigSource.CLUSTER),
        ConfigEntry("2000000", ConfigSource.BROKER),
        ConfigEntry("3000000", ConfigSource.TOPIC),
        ConfigEntry("1000000", ConfigSource.CLUSTER),
    ]
    assert in_force == 3_000_000
    assert partition_of(api, "flights").config.retention_ms == 1_000_000


@pytest.mark.parametrize("path", ["/v1/topics/flights", "/v1/brokers/0/config", "/v1/cluster/config"])
async def test_null_resets_the_whole_configuration(api, path: str) -> None:
    """A null as the whole configuration resets every key of its level and no value of other levels."""
    await api.admin.create_topic("flights", config={"segment.bytes": 1 << 20})
    await api.call("PATCH", path, {"config": {"retention.ms": 5, "flush.ms": 7}})
    before = (await api.call("PATCH", path, {"config": {}})).json["config"]
    after = (await api.call("PATCH", path, {"config": None})).json["config"]
    kept = (await api.admin.describe_topic("flights")).config["segment.bytes"].source

    assert (before["retention.ms"]["value"], after["retention.ms"]["value"]) == ("5", "604800000")
    assert [after[key]["source"] for key in ("retention.ms", "flush.ms")] == ["default", "default"]
    assert kept == (ConfigSource.DEFAULT if path == "/v1/topics/flights" else ConfigSource.TOPIC)


async def test_describing_broker_and_cluster(api) -> None:
    """A broker and the cluster are described with every key, its value and its source, including start settings."""
    await api.admin.alter_cluster_config({"num.partitions": 3, "flush.ms": 1000})
    cluster = await api.admin.cluster_config()
    broker = await api.admin.broker_config(0)

    assert cluster["num.partitions"] == ConfigEntry("3", ConfigSource.CLUSTER)
    assert cluster["default.replication.factor"] == ConfigEntry("min(3, brokers)", ConfigSource.DEFAULT)
    assert broker["flush.ms"] == ConfigEntry("1000", ConfigSource.CLUSTER)
    assert broker["log.retention.check.interval.ms"] == ConfigEntry("20", ConfigSource.BROKER)
    assert "num.partitions" not in broker


async def test_defaults_of_new_topics(api) -> None:
    """A new topic without numbers gets num.partitions and default.replication.factor."""
    await api.admin.alter_cluster_config({"num.partitions": 3})
    default = await api.admin.create_topic("flights")
    again = await api.admin.create_topic("flights")
    named = await api.admin.create_topic("orders", partitions=2)
    await api.admin.alter_cluster_config({"default.replication.factor": 2})
    with raises(InvalidConfigError, "replicas"):
        await api.admin.create_topic("too-many")

    assert (default.partitions, again.topic_id, named.partitions) == (3, default.topic_id, 2)


async def test_the_clusters_durability_reaches_the_records_of_partitions(api) -> None:
    """The controller writes the cluster's `durability` to the partition records of topics that do not set the key."""
    await api.admin.create_topic("flights")
    await api.admin.create_topic("orders", config={"durability": "synced"})
    await api.admin.alter_cluster_config({"durability": "replicated"})
    runtime = api.running.broker

    assert runtime.views.by_name("flights").partitions[PartitionIndex(0)].durability == "replicated"
    assert runtime.views.by_name("orders").partitions[PartitionIndex(0)].durability == "synced"


async def test_changes_of_another_client_are_followed(api) -> None:
    """A broker applies within seconds a value that another client of the store writes, as another broker would."""
    await api.admin.create_topic("flights")
    store = api.running.broker.entry.coordination._inner.connect()
    values = {"retention.ms": "1234", "durability": "replicated"}
    await store.transact((), (Put(Keys("fairlead").cluster_config, encode(ConfigRecord(values=values))),))
    await store.close()

    async def followed() -> bool:
        runtime = api.running.broker
        record = runtime.views.by_name("flights").partitions[PartitionIndex(0)]
        return partition_of(api, "flights").config.retention_ms == 1234 and record.durability == "replicated"

    await api.until(followed)


async def test_configuration_survives_a_restart(api, lives) -> None:
    """The configuration of the cluster and of a broker survives a restart, because it is in the store."""
    await api.admin.alter_cluster_config({"retention.ms": 77_000})
    await api.admin.alter_broker_config(0, {"auto.create.topics.enable": True})
    await api.running.stop()
    api = await lives.start()

    assert (await api.admin.cluster_config())["retention.ms"] == ConfigEntry("77000", ConfigSource.CLUSTER)
    assert (await api.admin.broker_config(0))["auto.create.topics.enable"] == ConfigEntry(
        "true", ConfigSource.BROKER
    )


async def test_the_interval_of_retention_changes_during_its_wait(lives, clock) -> None:
    """A day's wait for the next retention check ends when the interval is changed to 20 ms."""
    api = await lives.start({"log.retention.check.interval.ms": 24 * 3_600_000})
    await api.admin.create_topic("flights", config={"segment.ms": 1000, "retention.ms": 1000})
    await api.produce("flights", "a")
    clock.move(10)
    await api.running.broker.upkeep.look_after_segments()
    before = await api.start_and_end("flights")
    await api.admin.alter_broker_config(0, {"log.retention.check.interval.ms": 20})
    await api.begins_at("flights", 1)

    assert before == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "config", "status", "part"),
    [
        ("/v1/cluster/config", {"retention.ms": "soon"}, 422, "an integer from -1"),
        ("/v1/cluster/config", {"no.such.key": 1}, 422, "is unknown"),
        ("/v1/cluster/config", {"compression.type": "gzip"}, 422, "not supported yet"),
        ("/v1/brokers/0/config", {"durability": "synced"}, 422, "cannot be set on a broker"),
        ("/v1/brokers/0/config", {"num.partitions": 2}, 422, "cannot be set on a broker"),
        ("/v1/brokers/7/config", {"retention.ms": 1}, 404, "no broker 7"),
        ("/v1/brokers/seven/config", {"retention.ms": 1}, 400, "not a number"),
        ("/v1/topics/flights", {"num.partitions": 2}, 422, "cannot be set on a topic"),
    ],
)
async def test_invalid_values_are_refused_and_change_nothing(
    api, path: str, config: dict[str, object], status: int, part: str
) -> None:
    """A change with an invalid value is refused as a whole, and its valid keys are not set."""
    await api.admin.create_topic("flights")
    answer = await api.call("PATCH", path, {"config": {"flush.ms": 5, **config}})

    assert answer.status == status
    assert part in answer.json["detail"]
    assert (await api.admin.describe_topic("flights")).config["flush.ms"].source is ConfigSource.DEFAULT


async def test_a_missing_broker_has_no_configuration(api) -> None:
    """A request for the configuration of a missing broker is refused."""
    with pytest.raises(BrokerNotFoundError):
        await api.admin.broker_config(5)
