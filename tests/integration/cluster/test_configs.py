"""Changes of configuration through one broker apply at all brokers."""

from __future__ import annotations

from collections.abc import Callable

from cluster_kit import Cluster
from fairlead_api.bodies.requests import AlterTopicRequest
from fairlead_api.configuration import ConfigEntry, ConfigSource
from fairlead_api.identifiers import BrokerId
from fairlead_broker.runtime import Broker
from waiting import until

HOLDS_WITHIN_SECONDS = 5.0


async def holds_everywhere(cluster: Cluster, holds: Callable[[Broker], bool]) -> None:
    """Wait until a change applies at every broker, within the time allowed for it."""
    await until(lambda: all(holds(each.broker) for each in cluster.brokers.values()), HOLDS_WITHIN_SECONDS)


async def test_a_topics_change_at_one_broker_holds_at_the_others(cluster: Cluster) -> None:
    """A change of a topic's configuration through one broker applies at every other broker."""
    topic_id = await cluster.topic("flights")
    await cluster.led("flights", topic_id)
    await cluster.controller.alter_topic(
        "flights", AlterTopicRequest(config={"retention.ms": 60_000, "max.message.bytes": 5000})
    )
    await holds_everywhere(
        cluster,
        lambda runtime: (
            runtime.views.by_name("flights").config.retention_ms == 60_000
            and runtime.views.by_name("flights").config.max_message_bytes == 5000
        ),
    )


async def test_the_clusters_change_at_one_broker_holds_at_the_others(cluster: Cluster) -> None:
    """A change of a broker key or a topic default for the whole cluster applies at every broker, as does its reset."""
    topic_id = await cluster.topic("flights")
    await cluster.led("flights", topic_id)
    first, *_ = cluster.brokers.values()
    await first.broker.alter_cluster_config({"replica.lag.time.max.ms": 5000, "retention.ms": 120_000})
    await holds_everywhere(
        cluster,
        lambda runtime: (
            runtime.configs.of_cluster()["replica.lag.time.max.ms"]
            == ConfigEntry("5000", ConfigSource.CLUSTER)
            and runtime.views.by_name("flights").config.retention_ms == 120_000
        ),
    )
    await first.broker.alter_cluster_config({"replica.lag.time.max.ms": None, "retention.ms": None})
    await holds_everywhere(
        cluster,
        lambda runtime: (
            runtime.configs.of_cluster()["replica.lag.time.max.ms"].source is ConfigSource.DEFAULT
            and runtime.views.by_name("flights").config_entries["retention.ms"].source is ConfigSource.DEFAULT
        ),
    )


async def test_a_brokers_change_at_another_broker_is_known_to_all(cluster: Cluster) -> None:
    """A key set for one broker through another broker is shown by all brokers, but applies only to the first."""
    await cluster.broker(1).alter_broker_config(BrokerId(2), {"replica.lag.time.max.ms": 7000})

    def values_of(runtime: Broker) -> list[str | None]:
        return [runtime.broker_config(BrokerId(each))["replica.lag.time.max.ms"].value for each in (1, 2, 3)]

    await holds_everywhere(cluster, lambda runtime: values_of(runtime) == ["30000", "7000", "30000"])


async def test_minimum_in_sync_replicas_of_the_cluster_reach_the_partitions(cluster: Cluster) -> None:
    """A change of the cluster's `min.insync.replicas` through any broker is written to the partition records."""
    topic_id = await cluster.topic("flights")
    await cluster.led("flights", topic_id)
    other = next(each for each in cluster.brokers if each != cluster.any.peer_side.controller)
    before = cluster.record(topic_id).min_isr
    await cluster.broker(other).alter_cluster_config({"min.insync.replicas": 3})
    await until(lambda: cluster.record(topic_id).min_isr == 3, HOLDS_WITHIN_SECONDS)

    assert before == 2
