"""The plan of a topic, from the desired state and the brokers' answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead_api.configuration import ConfigEntry, ConfigSource
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.topic import (
    MOVES_MAX,
    AlterConfig,
    CancelMove,
    CreateTopic,
    GrowPartitions,
    MovePartition,
    MoveProgress,
    SetReplicationFactor,
    TopicPlan,
    config_changes,
    plan_topic,
    refused,
)
from fairlead_operator.plan.topic_observed import (
    LiveBroker,
    LivePartition,
    LiveTopic,
    LiveTopics,
    WantedTopic,
)

NAME = "flights"


def wanted(**about: Any) -> WantedTopic:
    """Return a desired topic, with one partition by default."""
    return WantedTopic(**{"name": NAME, "partitions": 1, "replicas": None, **about})


def topic(*placement: LivePartition, replicas: int = 2, **about: Any) -> LiveTopic:
    """Return a topic with the given partitions, by default one on brokers 1 and 2."""
    placed = placement or (partition(0, 1, 2),)
    given = {"name": NAME, "topic_id": "t", "partitions": len(placed), "replication_factor": replicas}
    return LiveTopic(placement=placed, **{**given, **about})


def partition(index: int, *replicas: int, **about: Any) -> LivePartition:
    """Return a partition on the given brokers, all in sync by default."""
    return LivePartition(index, replicas, isr=about.pop("isr", replicas), **about)


def live(*topics: LiveTopic, brokers: int = 3) -> LiveTopics:
    """Return a cluster of running brokers with the given topics."""
    return LiveTopics(
        tuple(LiveBroker(number, f"rack-{number}") for number in range(1, brokers + 1)),
        {each.name: each for each in topics},
    )


def plan(want: WantedTopic, *topics: LiveTopic, brokers: int = 3, desired: int = 3) -> TopicPlan:
    """Return the plan for a cluster that has the given topics."""
    return plan_topic(want, live(*topics, brokers=brokers), desired)


def reasons(planned: TopicPlan) -> list[str]:
    """Return the reasons of all findings."""
    return [finding.reason for finding in planned.findings]


def of_topic(**values: str) -> dict[str, ConfigEntry]:
    """Return values that are set on the topic itself, with a dot for two underscores in each key."""
    return {key.replace("__", "."): ConfigEntry(value, ConfigSource.TOPIC) for key, value in values.items()}


@pytest.mark.parametrize("there", [(), (topic(state="deleting"),)])
def test_a_topic_that_is_not_there_is_created(there: tuple[LiveTopic, ...]) -> None:
    """A missing topic is created with all desired keys except unmanaged keys, even while its predecessor is deleted."""
    want = wanted(
        partitions=3,
        replicas=2,
        config={"retention.ms": "1", "segment.ms": "2"},
        unmanaged=frozenset({"segment.ms"}),
    )

    assert plan(want, *there) == TopicPlan(actions=(CreateTopic(3, 2, {"retention.ms": "1"}),))


def test_a_topic_that_is_as_asked_for_is_left_alone() -> None:
    """A topic that matches its resource needs no action, with or without a replication factor in the resource."""
    for replicas in (None, 2):
        assert plan(wanted(replicas=replicas), topic()) == TopicPlan()


def test_a_topic_that_is_being_created_is_waited_for() -> None:
    """The plan waits for a topic that is being created, because not all of its partitions exist."""
    assert reasons(plan(wanted(), topic(state="creating"))) == ["ClusterNotReady"]


def test_without_a_replication_factor_the_brokers_are_waited_for() -> None:
    """A topic without a replication factor waits until all brokers run, because the brokers choose the factor."""
    waiting = plan(wanted(), brokers=1, desired=3)
    ready = plan(wanted(), brokers=1, desired=1)

    assert (waiting.actions, reasons(waiting)) == ((), ["ClusterNotReady"])
    assert ready.actions == (CreateTopic(1, None, {}),)


def test_more_replicas_than_brokers() -> None:
    """A topic with more replicas than brokers is refused, unless the Cluster will have enough brokers later."""
    coming = plan(wanted(replicas=4), brokers=3, desired=4)
    small = plan(wanted(replicas=4), brokers=3, desired=3)

    assert reasons(coming) == ["ClusterNotReady"]
    assert reasons(small) == ["ReplicationFactorTooLarge"]
    assert "4 replicas" in small.findings[0].message


def test_only_differing_keys_are_set() -> None:
    """Keys are set only if their normalized value differs, and a value equal to the default is set explicitly."""
    there = topic(
        config={
            **of_topic(retention__ms="60000", unclean__leader__election__enable="true"),
            "segment.ms": ConfigEntry("5", ConfigSource.CLUSTER),
        }
    )
    want = wanted(
        config={
            "retention.ms": "060000",
            "unclean.leader.election.enable": "true",
            "segment.ms": "5",
            "key.of.tomorrow": "x",
        }
    )

    assert config_changes(want, there) == {"segment.ms": "5", "key.of.tomorrow": "x"}


def test_absent_keys_go_back_to_the_default_and_unmanaged_ones_stay() -> None:
    """A key that is set on the topic and absent from the resource is reset, unless it is unmanaged."""
    there = topic(
        config={
            **of_topic(retention__ms="60000", segment__ms="7"),
            "max.message.bytes": ConfigEntry("5", ConfigSource.CLUSTER),
        }
    )

    assert plan(wanted(unmanaged=frozenset({"segment.ms"})), there).actions == (
        AlterConfig({"retention.ms": None}),
    )


def test_keys_that_a_write_quorum_fixes_are_not_reset() -> None:
    """A topic with a write quorum keeps the mode and the durability that it copied from the cluster's configuration."""
    fixed = of_topic(replication__mode="quorum", durability="replicated")
    there = topic(config={**fixed, **of_topic(quorum__write="2")})

    assert plan(wanted(), there).actions == (AlterConfig({"quorum.write": None}),)
    assert config_changes(wanted(config={"replication.mode": "isr"}), there) == {
        "quorum.write": None,
        "replication.mode": "isr",
    }
    assert config_changes(wanted(), topic(config=of_topic(durability="replicated"))) == {"durability": None}


def test_partitions_only_grow() -> None:
    """Partitions are added, but not removed: a smaller number is reported, and other changes are still made."""
    assert plan(wanted(partitions=4), topic()).actions == (GrowPartitions(4),)
    there = topic(partition(0, 1, 2), partition(1, 2, 3))
    shrinking = plan(wanted(config={"retention.ms": "1"}), there)

    assert reasons(shrinking) == ["PartitionsNotReducible"]
    assert shrinking.actions == (AlterConfig({"retention.ms": "1"}),)
    assert plan(wanted(partitions=None), there) == TopicPlan()


def test_more_replicas_are_moved_to_before_they_are_written_down() -> None:
    """Replicas are added in a new rack first, and the replication factor is written after all partitions have them."""
    begun = plan(wanted(replicas=3), topic())
    moving = topic(partition(0, 1, 2, 3, adding=(3,), isr=(1, 2)))
    under_way = plan(wanted(replicas=3), moving)
    moved = plan(wanted(replicas=3), topic(partition(0, 1, 2, 3)))

    assert begun.actions == (MovePartition(0, (1, 2, 3)),)
    assert begun.progress == MoveProgress(1, 1)
    assert (under_way.actions, under_way.progress) == ((), MoveProgress(1, 1))
    assert (moved.actions, moved.progress) == ((SetReplicationFactor(3),), None)


def test_fewer_replicas_are_written_down_before_the_moves() -> None:
    """A lower replication factor is written before the moves, which could not end under the old minimum."""
    planned = plan(wanted(replicas=1), topic())

    assert planned.actions == (SetReplicationFactor(1), MovePartition(0, (1,)))


def test_moves_of_others_do_not_count() -> None:
    """The moves of a drain do not count as a change of the replication factor."""
    draining = topic(partition(0, 2, 3, 1, adding=(3,), removing=(1,), isr=(1, 2)))

    assert plan(wanted(replicas=2), draining) == TopicPlan()


def test_a_change_of_mind_takes_moves_back() -> None:
    """A move is cancelled if its original replicas are desired again, and otherwise continues."""
    moving = topic(partition(0, 1, 2, 3, adding=(3,), isr=(1, 2)))

    assert plan(wanted(replicas=2), moving).actions == (CancelMove(0),)
    assert plan(wanted(replicas=1), moving).actions == (SetReplicationFactor(1),)


def test_moves_at_once_are_bounded() -> None:
    """The number of simultaneous moves is limited, and running moves count towards the limit."""
    there = topic(
        partition(0, 1, 2, 3, adding=(3,), isr=(1, 2)),
        *(partition(index, 1, 2) for index in range(1, 2 * MOVES_MAX)),
    )
    planned = plan(wanted(partitions=2 * MOVES_MAX, replicas=3), there)

    assert len(planned.actions) == MOVES_MAX - 1
    assert planned.progress == MoveProgress(2 * MOVES_MAX, 2 * MOVES_MAX)


def test_a_topic_that_cannot_have_more_replicas_says_so() -> None:
    """A topic with too few available brokers is reported, without counting cordoned brokers."""
    cluster = live(topic(), brokers=3)
    cordoned = LiveTopics(
        tuple(replace(each, cordoned=each.id == 3) for each in cluster.brokers), cluster.topics
    )
    planned = plan_topic(wanted(replicas=3), cordoned, 3)

    assert (planned.actions, reasons(planned)) == ((), ["ReplicationFactorTooLarge"])


def test_a_minimum_above_the_replicas_waits_for_them() -> None:
    """A min.insync.replicas above the number of replicas is set only after the topic has enough replicas."""
    want = wanted(replicas=3, config={"min.insync.replicas": "3", "retention.ms": "1"})
    first = plan(want, topic())
    last = plan(want, topic(partition(0, 1, 2, 3), replicas=3, config=of_topic(retention__ms="1")))

    assert first.actions == (AlterConfig({"retention.ms": "1"}), MovePartition(0, (1, 2, 3)))
    assert last.actions == (AlterConfig({"min.insync.replicas": "3"}),)


@pytest.mark.parametrize(
    ("replicas", "minimum", "there", "expected"),
    [
        (2, "3", None, ["MinInsyncReplicasTooLarge"]),
        (2, "2", None, []),
        (2, "many", None, []),
        (None, "3", None, []),
        (None, "3", topic(), ["MinInsyncReplicasTooLarge"]),
        (
            1,
            None,
            topic(config={"min.insync.replicas": ConfigEntry("2", ConfigSource.CLUSTER)}),
            ["MinInsyncReplicasTooLarge"],
        ),
        (1, None, topic(config={"min.insync.replicas": ConfigEntry("2", ConfigSource.UNUSED)}), []),
        (2, None, topic(), []),
    ],
)
def test_a_minimum_that_cannot_be_reached_is_warned_of(
    replicas: int | None, minimum: str | None, there: LiveTopic | None, expected: list[str]
) -> None:
    """A min.insync.replicas above the number of replicas causes a warning, regardless of the source of the value."""
    config = {} if minimum is None else {"min.insync.replicas": minimum}
    planned = plan(wanted(replicas=replicas, config=config), *([] if there is None else [there]))

    assert [warning.reason for warning in planned.warnings] == expected


def test_a_minimum_that_others_manage_is_not_looked_at() -> None:
    """An unmanaged min.insync.replicas causes no warning."""
    there = topic(partition(0, 1), replicas=1, config=of_topic(min__insync__replicas="2"))
    unmanaged = frozenset({"min.insync.replicas"})

    assert plan(wanted(replicas=1), there).warnings != ()
    assert plan(wanted(replicas=1, unmanaged=unmanaged), there) == TopicPlan()


def test_unmanaged_keys_that_do_not_exist_are_warned_of() -> None:
    """A warning names the unmanaged keys that do not exist."""
    planned = plan(wanted(unmanaged=frozenset({"retention.ms", "retention.msec"})), topic())

    assert [warning.reason for warning in planned.warnings] == ["UnmanagedKeys"]
    assert "retention.msec" in planned.warnings[0].message


@pytest.mark.parametrize(
    ("code", "key", "reason"),
    [
        ("invalid_config", "retention.ms", "InvalidConfig"),
        ("invalid_config", "replication_factor", "ReplicationFactorTooLarge"),
        ("invalid_topic_name", "", "InvalidTopicName"),
        ("forbidden", "", "BrokersRefused"),
    ],
)
def test_refusals_of_brokers_have_reasons(code: str, key: str, reason: str) -> None:
    """A refusal by the brokers becomes a finding with a reason and the brokers' message."""
    assert refused(code, key, "because") == Finding(reason, "because")


def test_a_mirror_is_left_to_its_link() -> None:
    """A topic that a link mirrors is not changed, whatever the Topic wants."""
    planned = plan(wanted(partitions=5, replicas=3), topic(link="east"))

    assert reasons(planned) == ["OwnedByLink"]
    assert planned.actions == ()
