"""What is to be done with a topic, from what is wanted and what the brokers told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead_api.configuration import ConfigEntry, ConfigSource
from fairlead_operator.plan.topic import (
    MOVES_MAX,
    AlterConfig,
    CancelMove,
    CreateTopic,
    Finding,
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
    """What a resource asks for: one partition unless told otherwise."""
    return WantedTopic(**{"name": NAME, "partitions": 1, "replicas": None, **about})


def topic(*placement: LivePartition, replicas: int = 2, **about: Any) -> LiveTopic:
    """A topic with these partitions, or with one on the brokers 1 and 2."""
    placed = placement or (partition(0, 1, 2),)
    given = {"name": NAME, "topic_id": "t", "partitions": len(placed), "replication_factor": replicas}
    return LiveTopic(placement=placed, **{**given, **about})


def partition(index: int, *replicas: int, **about: Any) -> LivePartition:
    """A partition on these brokers, all in sync."""
    return LivePartition(index, replicas, isr=about.pop("isr", replicas), **about)


def live(*topics: LiveTopic, brokers: int = 3) -> LiveTopics:
    """A cluster of running brokers with these topics."""
    return LiveTopics(
        tuple(LiveBroker(number, f"rack-{number}") for number in range(1, brokers + 1)),
        {each.name: each for each in topics},
    )


def plan(want: WantedTopic, *topics: LiveTopic, brokers: int = 3, desired: int = 3) -> TopicPlan:
    """Plan for a cluster that has these topics."""
    return plan_topic(want, live(*topics, brokers=brokers), desired)


def reasons(planned: TopicPlan) -> list[str]:
    """Why the topic cannot become what is asked for."""
    return [finding.reason for finding in planned.findings]


def of_topic(**values: str) -> dict[str, ConfigEntry]:
    """Values that are set on a topic itself; a dot of a key is written as two underscores."""
    return {key.replace("__", "."): ConfigEntry(value, ConfigSource.TOPIC) for key, value in values.items()}


@pytest.mark.parametrize("there", [(), (topic(state="deleting"),)])
def test_a_topic_that_is_not_there_is_created(there: tuple[LiveTopic, ...]) -> None:
    """With all that is asked for but unmanaged keys; so is one whose predecessor is just being deleted."""
    want = wanted(
        partitions=3,
        replicas=2,
        config={"retention.ms": "1", "segment.ms": "2"},
        unmanaged=frozenset({"segment.ms"}),
    )

    assert plan(want, *there) == TopicPlan(actions=(CreateTopic(3, 2, {"retention.ms": "1"}),))


def test_a_topic_that_is_as_asked_for_is_left_alone() -> None:
    """Also where the resource says nothing about replicas."""
    for replicas in (None, 2):
        assert plan(wanted(replicas=replicas), topic()) == TopicPlan()


def test_a_topic_that_is_being_created_is_waited_for() -> None:
    """Its partitions are not all there yet."""
    assert reasons(plan(wanted(), topic(state="creating"))) == ["ClusterNotReady"]


def test_without_a_replication_factor_the_brokers_are_waited_for() -> None:
    """The brokers choose by how many they are: alone, the first of three would keep the only copy."""
    waiting = plan(wanted(), brokers=1, desired=3)
    ready = plan(wanted(), brokers=1, desired=1)

    assert (waiting.actions, reasons(waiting)) == ((), ["ClusterNotReady"])
    assert ready.actions == (CreateTopic(1, None, {}),)


def test_more_replicas_than_brokers() -> None:
    """A cluster that is to have enough is waited for; one that is not is too small."""
    coming = plan(wanted(replicas=4), brokers=3, desired=4)
    small = plan(wanted(replicas=4), brokers=3, desired=3)

    assert reasons(coming) == ["ClusterNotReady"]
    assert reasons(small) == ["ReplicationFactorTooLarge"]
    assert "4 replicas" in small.findings[0].message


def test_only_differing_keys_are_set() -> None:
    """In the brokers' own form; a default of the same value is still set, so that it stays when the default moves."""
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
    """Only what was set on the topic itself: a value of the cluster is a default of its topics."""
    there = topic(
        config={
            **of_topic(retention__ms="60000", segment__ms="7"),
            "max.message.bytes": ConfigEntry("5", ConfigSource.CLUSTER),
        }
    )

    assert plan(wanted(unmanaged=frozenset({"segment.ms"})), there).actions == (
        AlterConfig({"retention.ms": None}),
    )


def test_partitions_only_grow() -> None:
    """Fewer than there are is said, and keeps nothing else back."""
    assert plan(wanted(partitions=4), topic()).actions == (GrowPartitions(4),)
    there = topic(partition(0, 1, 2), partition(1, 2, 3))
    shrinking = plan(wanted(config={"retention.ms": "1"}), there)

    assert reasons(shrinking) == ["PartitionsNotReducible"]
    assert shrinking.actions == (AlterConfig({"retention.ms": "1"}),)
    assert plan(wanted(partitions=None), there) == TopicPlan()


def test_more_replicas_are_moved_to_before_they_are_written_down() -> None:
    """A rack without a replica is taken; the number is written when all partitions have it."""
    begun = plan(wanted(replicas=3), topic())
    moving = topic(partition(0, 1, 2, 3, adding=(3,), isr=(1, 2)))
    under_way = plan(wanted(replicas=3), moving)
    moved = plan(wanted(replicas=3), topic(partition(0, 1, 2, 3)))

    assert begun.actions == (MovePartition(0, (1, 2, 3)),)
    assert begun.progress == MoveProgress(1, 1)
    assert (under_way.actions, under_way.progress) == ((), MoveProgress(1, 1))
    assert (moved.actions, moved.progress) == ((SetReplicationFactor(3),), None)


def test_fewer_replicas_are_written_down_before_the_moves() -> None:
    """The minimum that follows from the old number would forbid the end of the moves."""
    planned = plan(wanted(replicas=1), topic())

    assert planned.actions == (SetReplicationFactor(1), MovePartition(0, (1,)))


def test_moves_of_others_do_not_count() -> None:
    """A drain that replaces a replica leaves their number as it is."""
    draining = topic(partition(0, 2, 3, 1, adding=(3,), removing=(1,), isr=(1, 2)))

    assert plan(wanted(replicas=2), draining) == TopicPlan()


def test_a_change_of_mind_takes_moves_back() -> None:
    """If where they came from is what is wanted now; else they are waited for."""
    moving = topic(partition(0, 1, 2, 3, adding=(3,), isr=(1, 2)))

    assert plan(wanted(replicas=2), moving).actions == (CancelMove(0),)
    assert plan(wanted(replicas=1), moving).actions == (SetReplicationFactor(1),)


def test_moves_at_once_are_bounded() -> None:
    """Those under way count."""
    there = topic(
        partition(0, 1, 2, 3, adding=(3,), isr=(1, 2)),
        *(partition(index, 1, 2) for index in range(1, 2 * MOVES_MAX)),
    )
    planned = plan(wanted(partitions=2 * MOVES_MAX, replicas=3), there)

    assert len(planned.actions) == MOVES_MAX - 1
    assert planned.progress == MoveProgress(2 * MOVES_MAX, 2 * MOVES_MAX)


def test_a_topic_that_cannot_have_more_replicas_says_so() -> None:
    """Brokers that are there, but take none, do not help."""
    cluster = live(topic(), brokers=3)
    cordoned = LiveTopics(
        tuple(replace(each, cordoned=each.id == 3) for each in cluster.brokers), cluster.topics
    )
    planned = plan_topic(wanted(replicas=3), cordoned, 3)

    assert (planned.actions, reasons(planned)) == ((), ["ReplicationFactorTooLarge"])


def test_a_minimum_above_the_replicas_waits_for_them() -> None:
    """Brokers would refuse it before the topic has them."""
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
        (2, None, topic(), []),
    ],
)
def test_a_minimum_that_cannot_be_reached_is_warned_of(
    replicas: int | None, minimum: str | None, there: LiveTopic | None, expected: list[str]
) -> None:
    """Wherever it comes from."""
    config = {} if minimum is None else {"min.insync.replicas": minimum}
    planned = plan(wanted(replicas=replicas, config=config), *([] if there is None else [there]))

    assert [warning.reason for warning in planned.warnings] == expected


def test_a_minimum_that_others_manage_is_not_looked_at() -> None:
    """Whoever manages the key knows what they do with it."""
    there = topic(partition(0, 1), replicas=1, config=of_topic(min__insync__replicas="2"))
    unmanaged = frozenset({"min.insync.replicas"})

    assert plan(wanted(replicas=1), there).warnings != ()
    assert plan(wanted(replicas=1, unmanaged=unmanaged), there) == TopicPlan()


def test_unmanaged_keys_that_do_not_exist_are_warned_of() -> None:
    """Somebody meant another one."""
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
    """With the brokers' words."""
    assert refused(code, key, "because") == Finding(reason, "because")
