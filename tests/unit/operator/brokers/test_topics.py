"""Topics of a cluster as the operator lists and changes them, with a real broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fairlead import Admin
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.wiring.start import RunningBroker, start_broker
from fairlead_operator.brokers.calls import BrokerCalls, BrokersUnavailable
from fairlead_operator.brokers.topics import (
    LISTING_SECONDS,
    Deletion,
    TopicCalls,
    TopicChanged,
    TopicRefused,
)
from fairlead_operator.plan.topic import (
    AlterConfig,
    CancelMove,
    CreateTopic,
    GrowPartitions,
    MovePartition,
    SetReplicationFactor,
)
from refusals import raises

ANY_PORT = Endpoint("127.0.0.1", 0)
CLUSTER: dict[str, Any] = {
    "metadata": {"name": "main", "namespace": "shop"},
    "spec": {"brokers": [{"name": "a", "firstBrokerId": 0, "replicas": 1}]},
}


class HandClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        """Start the clock at 100 seconds."""
        self.seconds = 100.0

    def now(self) -> datetime:
        """Return a fixed date."""
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        """Return the seconds that the test has set, plus a millisecond for each call."""
        self.seconds += 0.001
        return self.seconds


@pytest.fixture
def clock() -> HandClock:
    """Return a clock that only the test advances."""
    return HandClock()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    """Yield a broker in this process."""
    running = await start_broker(
        BrokerSettings(data=tmp_path / "data", listen=ANY_PORT, peer_listen=ANY_PORT, ops_listen=ANY_PORT)
    )
    yield running
    await running.stop()


@pytest.fixture
async def calls(broker: RunningBroker, clock: HandClock) -> AsyncIterator[TopicCalls]:
    """Yield calls to the cluster of the broker."""
    brokers = BrokerCalls(f"http://{broker.addresses.data}")
    yield TopicCalls(brokers, clock)
    await brokers.close()


@pytest.fixture
async def admin(broker: RunningBroker) -> AsyncIterator[Admin]:
    """Yield another client that changes topics."""
    async with Admin(f"http://{broker.addresses.data}") as other:
        yield other


async def test_a_topic_is_changed_and_the_listing_with_it(calls: TopicCalls) -> None:
    """A change to a topic updates the cached listing without another request."""
    await calls.topics(CLUSTER)
    await calls.run(CLUSTER, "a", None, CreateTopic(2, 1, {"retention.ms": "60000"}))
    created = (await calls.topics(CLUSTER)).topics["a"]
    await calls.run(CLUSTER, "a", created.topic_id, AlterConfig({"retention.ms": None, "segment.ms": "5000"}))
    await calls.run(CLUSTER, "a", created.topic_id, SetReplicationFactor(1))
    altered = (await calls.topics(CLUSTER)).topics["a"]
    await calls.run(CLUSTER, "a", created.topic_id, GrowPartitions(3))
    grown = (await calls.topics(CLUSTER)).topics["a"]

    assert (created.partitions, created.replication_factor) == (2, 1)
    assert created.config["retention.ms"].value == "60000"
    assert {key: entry.value for key, entry in altered.config.items() if entry.source == "topic"} == {
        "segment.ms": "5000"
    }
    assert [partition.replicas for partition in grown.placement] == [(0,)] * 3


async def test_a_listing_under_way_outlives_another_number_of_brokers(broker: RunningBroker) -> None:
    """A listing that runs while the Cluster is scaled to a different number of brokers still succeeds."""
    brokers = BrokerCalls(f"http://{broker.addresses.data}")
    calls = TopicCalls(brokers, HandClock())
    pool = {"name": "a", "firstBrokerId": 0, "replicas": 3}
    scaled = {**CLUSTER, "spec": {"brokers": [pool]}}
    listed, _ = await asyncio.gather(calls.topics(CLUSTER), brokers.admin(scaled))
    await brokers.close()

    assert listed.topics == {}
    assert [each.id for each in listed.brokers] == [0]


async def test_one_listing_serves_all_for_a_moment(calls: TopicCalls, admin: Admin, clock: HandClock) -> None:
    """A listing is shared for a few seconds.

    Changes by other clients appear after the listing has expired, or at once in a call with `fresh`.
    """
    assert (await calls.topics(CLUSTER)).topics == {}
    await admin.create_topic("a")
    shared = set((await calls.topics(CLUSTER)).topics)
    fresh = set((await calls.topics(CLUSTER, fresh=True)).topics)
    await admin.create_topic("b")
    clock.seconds += LISTING_SECONDS + 1

    assert (shared, fresh) == (set(), {"a"})
    assert set((await calls.topics(CLUSTER)).topics) == {"a", "b"}


async def test_only_the_very_topic_is_changed_or_deleted(calls: TopicCalls, admin: Admin) -> None:
    """A topic of the same name with a different id is not changed or deleted, and a missing topic is not an error."""
    first = await admin.create_topic("a")
    await admin.delete_topic("a")
    second = await admin.create_topic("a")

    with pytest.raises(TopicChanged):
        await calls.run(CLUSTER, "a", first.topic_id, GrowPartitions(2))
    with pytest.raises(TopicChanged):
        await calls.run(CLUSTER, "a", None, CreateTopic(7, 1, {}))
    assert await calls.delete(CLUSTER, "a", first.topic_id) is Deletion.ANOTHER
    assert await calls.delete(CLUSTER, "a", second.topic_id) is Deletion.DELETED
    assert await calls.delete(CLUSTER, "a", second.topic_id) is Deletion.ABSENT


async def test_refusals_keep_the_brokers_words(calls: TopicCalls) -> None:
    """A refusal has the brokers' code, key and message; a failure that may be temporary is `BrokersUnavailable`."""
    with raises(TopicRefused, "retention.ms") as refused:
        await calls.run(CLUSTER, "a", None, CreateTopic(1, 1, {"retention.ms": "soon"}))
    await calls.run(CLUSTER, "a", None, CreateTopic(1, 1, {}))
    await calls.topics(CLUSTER, fresh=True)

    assert (refused.value.code, refused.value.key) == ("invalid_config", "retention.ms")
    with pytest.raises(TopicRefused) as unknown:
        await calls.run(CLUSTER, "a", None, MovePartition(0, (9,)))
    assert unknown.value.code == "broker_not_found"
    with pytest.raises(BrokersUnavailable):
        await calls.run(CLUSTER, "a", None, MovePartition(5, (0,)))


async def test_moves_are_known_at_once(calls: TopicCalls) -> None:
    """A move to the current brokers and the cancellation of a missing move both succeed, and the listing shows them."""
    await calls.run(CLUSTER, "a", None, CreateTopic(1, 1, {}))
    await calls.topics(CLUSTER, fresh=True)
    await calls.run(CLUSTER, "a", None, MovePartition(0, (0,)))
    await calls.run(CLUSTER, "a", None, CancelMove(0))

    assert (await calls.topics(CLUSTER)).topics["a"].placement[0].replicas == (0,)


async def test_what_changes_during_a_listing_is_not_lost(
    calls: TopicCalls, admin: Admin, clock: HandClock
) -> None:
    """A listing requested before a change does not undo the change in the cache; a later listing replaces the cache."""
    await calls.run(CLUSTER, "kept", None, CreateTopic(1, 1, {}))
    await calls.run(CLUSTER, "gone", None, CreateTopic(1, 1, {}))
    doomed = (await calls.topics(CLUSTER, fresh=True)).topics["gone"]
    clock.seconds = 200
    await calls.run(CLUSTER, "kept", None, AlterConfig({"segment.ms": "5000"}))
    await calls.delete(CLUSTER, "gone", doomed.topic_id)
    await admin.delete_topic("kept")
    await admin.create_topic("gone")
    clock.seconds = 190
    earlier = set((await calls.topics(CLUSTER, fresh=True)).topics)
    clock.seconds = 210
    later = set((await calls.topics(CLUSTER, fresh=True)).topics)

    assert (earlier, later) == ({"kept"}, {"gone"})


async def test_a_cluster_that_does_not_answer_is_asked_once_for_all(clock: HandClock) -> None:
    """The failure of a listing is shared for a few seconds, or until the cluster is forgotten."""
    brokers = BrokerCalls("http://127.0.0.1:1")
    calls = TopicCalls(brokers, clock)
    with raises(BrokersUnavailable, "list") as first:
        await calls.topics(CLUSTER)
    with pytest.raises(BrokersUnavailable) as second:
        await calls.topics(CLUSTER)
    calls.forget("shop", "main")
    with pytest.raises(BrokersUnavailable) as third:
        await calls.topics({**CLUSTER, "spec": {}})
    await brokers.close()

    assert str(second.value) == str(first.value)
    assert str(third.value) != str(first.value)
