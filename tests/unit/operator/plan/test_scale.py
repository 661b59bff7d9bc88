"""The number of brokers of each pool: brokers are added at once, and removed one at a time when empty."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fairlead_operator.plan.actions import (
    CordonBroker,
    DeleteSet,
    DrainBroker,
    ShrinkSet,
    UncordonBroker,
    UndrainBroker,
    UnregisterBroker,
)
from fairlead_operator.plan.observed import BrokersAnswer
from fairlead_operator.plan.scale import (
    Leaving,
    Pool,
    ScaleInput,
    ScalePlan,
    needs_metadata,
    partitions_on,
    plan_scale,
    running_sets,
)
from plan_kit import answer, described_broker, gone_broker, metadata, pod, stateful_set
from refusals import missing

ON_THREE = {"orders": [{"replicas": [0, 1, 2], "min_isr": 2}]}


def given(
    wanted: int, running: int, says: BrokersAnswer | None, *, meant: Iterable[int] = (), **said: Any
) -> ScaleInput:
    """Return the input for pool `a` with the given numbers of desired and running brokers."""
    facts: dict[str, Any] = {
        "pools": (Pool(name="a", first_broker=0, replicas=wanted),),
        "sets": (stateful_set(running),),
        "pods": tuple(pod(broker) for broker in range(running)),
        "answer": says,
        "meant": tuple(meant),
    }
    return ScaleInput(**{**facts, **said})


def scaled(
    wanted: int, running: int, says: BrokersAnswer | None, *, meant: Iterable[int] = (), **said: Any
) -> ScalePlan:
    """Return the plan for the input that `given` returns."""
    return plan_scale(given(wanted, running, says, meant=meant, **said))


def test_a_new_pool_has_what_the_spec_asks_for() -> None:
    """A new pool gets the replicas of its spec without answers from brokers."""
    planned = scaled(3, 0, None, sets=(), pods=())

    assert planned == ScalePlan(replicas={"a": 3}, staying=frozenset({0, 1, 2}))


def test_more_brokers_come_at_once() -> None:
    """More brokers are added at once, even while no broker answers."""
    assert scaled(5, 3, None).replicas == {"a": 5}


def test_brokers_stay_while_no_broker_answers() -> None:
    """No broker is removed while no broker answers."""
    planned = scaled(3, 5, None)

    assert planned.replicas == {"a": 5}
    assert planned.actions == ()
    assert planned.blocked is not None
    assert planned.blocked.reason == "BrokersUnreachable"


def test_leaving_brokers_are_named_before_the_first_cordon() -> None:
    """The status names the leaving brokers before the first of them is cordoned."""
    planned = scaled(3, 5, answer(range(5), topics=ON_THREE))

    assert planned.actions == ()
    assert planned.leaving == Leaving(brokers=(3, 4))
    assert planned.replicas == {"a": 5}


def test_all_that_leave_are_cordoned_and_the_highest_is_drained() -> None:
    """All leaving brokers are cordoned, and only the leaving broker with the highest id is drained."""
    planned = scaled(3, 5, answer(range(5), topics=ON_THREE | {"logs": [{"replicas": [4, 0]}]}), meant=[3, 4])

    assert planned.actions == (CordonBroker(3), CordonBroker(4), DrainBroker(4))
    assert planned.leaving == Leaving(brokers=(3, 4), partitions_left=1)


def test_a_drain_goes_on_until_nothing_is_left() -> None:
    """A drain lasts until every replica has left the broker, including replicas that are being moved."""
    draining = described_broker(4, state="draining", cordoned=True)
    moving = ON_THREE | {"logs": [{"replicas": [0, 4], "removing": [4], "adding": [1]}]}
    says = answer([0, 1, 2, described_broker(3, cordoned=True), draining], topics=moving)
    planned = scaled(3, 5, says, meant=[3, 4])

    assert planned.actions == ()
    assert planned.replicas == {"a": 5}
    assert planned.leaving == Leaving(brokers=(3, 4), partitions_left=1)


def test_a_broker_that_keeps_nothing_loses_its_pod() -> None:
    """A drained broker without replicas loses its pod, and the next broker is drained afterwards."""
    draining = described_broker(4, state="draining", cordoned=True)
    says = answer([0, 1, 2, described_broker(3, cordoned=True), draining], topics=ON_THREE)
    planned = scaled(3, 5, says, meant=[3, 4])

    assert planned.replicas == {"a": 4}
    assert planned.actions == ()


def test_an_uncordoned_broker_keeps_its_pod_even_if_it_is_empty() -> None:
    """An empty broker that is not cordoned keeps its pod, because it could still get a replica."""
    planned = scaled(3, 4, answer(range(4), topics=ON_THREE), meant=[3])

    assert planned.replicas == {"a": 4}
    assert planned.actions == (CordonBroker(3), DrainBroker(3))


def test_a_broker_keeps_its_pod_until_its_cordon_is_reported() -> None:
    """A leaving broker keeps its pod until the listing of its replicas comes from a broker that reports the cordon."""
    cordoned = described_broker(3, cordoned=True)
    says = answer([0, 1, 2, cordoned], topics=ON_THREE)
    older = replace(says, metadata=metadata(ON_THREE, [*map(described_broker, range(4))]))

    assert scaled(3, 4, older, meant=[3]).replicas == {"a": 4}
    assert scaled(3, 4, says, meant=[3]).replicas == {"a": 3}


def test_the_next_broker_waits_until_the_pod_of_the_last_one_is_gone() -> None:
    """The next leaving broker waits until the pod of the previous leaving broker is gone."""
    says = answer(
        [0, 1, 2, described_broker(3, cordoned=True), gone_broker(4, cordoned=True)], topics=ON_THREE
    )
    planned = scaled(3, 4, says, meant=[3, 4], pods=tuple(pod(broker) for broker in range(5)))

    assert planned.replicas == {"a": 4}
    assert planned.actions == ()


def test_a_broker_that_never_came_leaves_at_once() -> None:
    """A leaving broker that never registered is removed at once."""
    planned = scaled(3, 4, answer(range(3), topics=ON_THREE), meant=[3])

    assert planned.replicas == {"a": 3}


def test_a_gone_broker_is_forgotten_when_it_keeps_nothing() -> None:
    """A broker that is gone, has no replicas and no pod, and is not in the spec is unregistered."""
    says = answer([0, 1, 2, gone_broker(4, cordoned=True)], topics=ON_THREE)

    assert scaled(3, 3, says, meant=[4]).actions == (UnregisterBroker(4),)
    assert scaled(3, 3, says, meant=[4]).leaving == Leaving(brokers=(4,))


def test_a_gone_broker_that_keeps_replicas_is_not_forgotten() -> None:
    """A broker that is gone but still has replicas is not unregistered."""
    says = answer([0, 1, 2, gone_broker(4)], topics={"logs": [{"replicas": [0, 4]}]})

    assert scaled(3, 3, says).actions == ()


def test_a_gone_broker_that_is_wanted_is_not_forgotten() -> None:
    """A broker that is gone but still in the spec is not unregistered."""
    says = answer([0, 1, gone_broker(2)], topics={})

    assert scaled(3, 3, says, pods=(pod(0), pod(1))).actions == ()


def test_what_was_meant_is_over_when_the_brokers_are_forgotten() -> None:
    """The status no longer names leaving brokers after all of them are unregistered."""
    assert scaled(3, 3, answer(range(3), topics={}), meant=[3, 4]).leaving is None


def test_a_raised_spec_takes_all_brokers_back() -> None:
    """A spec with more replicas ends drain and cordons; the status lists the brokers until they report the change."""
    draining = described_broker(4, state="draining", cordoned=True)
    says = answer([0, 1, 2, described_broker(3, cordoned=True), draining], topics=ON_THREE)
    planned = scaled(5, 5, says, meant=[3, 4])

    assert planned.actions == (UncordonBroker(3), UndrainBroker(4), UncordonBroker(4))
    assert planned.leaving == Leaving(brokers=(3, 4))
    assert scaled(5, 5, answer(range(5), topics=ON_THREE), meant=[3, 4]).leaving is None


def test_a_cordon_of_a_user_stays() -> None:
    """The operator keeps a cordon that it did not set."""
    says = answer([0, 1, described_broker(2, cordoned=True)], topics={})

    assert scaled(3, 3, says).actions == ()


def test_taking_back_waits_for_brokers_that_answer() -> None:
    """Leaving brokers stay in the status while no broker answers."""
    assert scaled(5, 5, None, meant=[3, 4]).leaving == Leaving(brokers=(3, 4))


def test_a_broker_that_is_wanted_back_and_unknown_is_meant_no_longer() -> None:
    """An unregistered broker that is in the spec again no longer counts as leaving."""
    assert scaled(4, 3, answer(range(3), topics={}), meant=[3]).leaving is None


def test_fewer_brokers_than_replicas_are_refused() -> None:
    """The refusal of a spec with fewer brokers than replicas names topics and numbers; the StatefulSet is unchanged."""
    planned = scaled(2, 3, answer(range(3), topics=ON_THREE), meant=[2])

    assert planned.replicas == {"a": 3}
    assert planned.staying == frozenset({0, 1})
    assert planned.actions == ()
    assert planned.leaving == Leaving(brokers=(2,))
    assert planned.blocked is not None
    assert planned.blocked.reason == "ReplicationFactor"
    assert missing(planned.blocked.message, 2, 3, "orders") == []


def test_a_broker_that_may_not_leave_is_looked_after_like_the_others() -> None:
    """A broker whose removal is refused is still included in rolls and configuration changes."""
    refused = scaled(2, 3, answer(range(3), topics=ON_THREE))
    announced = scaled(2, 3, answer(range(3), topics={}))

    assert refused.staying == scaled(2, 3, None).staying == frozenset({0, 1, 2})
    assert announced.staying == frozenset({0, 1})


def test_so_few_brokers_that_none_could_be_restarted_are_refused() -> None:
    """A spec is refused if restarting one of its brokers would violate `min.insync.replicas`."""
    strict = {"orders": [{"replicas": [0, 1], "min_isr": 2}], "single": [{"replicas": [0], "min_isr": 1}]}
    planned = scaled(2, 3, answer(range(3), topics=strict))

    assert planned.blocked is not None
    assert planned.blocked.reason == "MinInSyncReplicas"
    assert "orders" in planned.blocked.message
    assert "single" not in planned.blocked.message
    single = scaled(1, 2, answer(range(2), topics={"single": [{"replicas": [1]}]}))
    assert single.blocked is None


def test_the_last_broker_never_leaves() -> None:
    """The last broker of a Cluster is never removed."""
    planned = scaled(0, 1, answer([0], topics={}))

    assert planned.replicas == {"a": 1}
    assert planned.blocked is not None


def test_many_topics_are_counted() -> None:
    """A message names ten topics and states how many more there are."""
    many = {f"topic-{number:02}": [{"replicas": [0, 1, 2]}] for number in range(12)}
    planned = scaled(2, 3, answer(range(3), topics=many))

    assert planned.blocked is not None
    assert "topic-09 and 2 more" in planned.blocked.message


def test_a_drain_that_cannot_end_names_its_partitions() -> None:
    """A drain that cannot complete is reported with its immovable partitions."""
    stuck = described_broker(3, state="draining", cordoned=True, immovable=["logs-0"])
    says = answer([0, 1, 2, stuck], topics={"logs": [{"replicas": [3, 0, 1]}]})
    planned = scaled(3, 4, says, meant=[3])

    assert planned.blocked is not None
    assert planned.blocked.reason == "DrainStuck"
    assert "logs-0" in planned.blocked.message
    assert planned.replicas == {"a": 4}


def test_a_pool_that_left_the_spec_shrinks_and_goes() -> None:
    """The StatefulSet of a pool that was removed from the spec is scaled down in place and deleted when empty."""
    other = stateful_set(1, name="main-b", uid="uid-b", pool="b", first_broker=100)
    empty = described_broker(100, state="draining", cordoned=True)
    pods = (*(pod(broker) for broker in range(3)), pod(100, pool="b"))
    says = answer([0, 1, 2, empty], topics=ON_THREE)
    shrinking = scaled(3, 3, says, meant=[100], sets=(stateful_set(3), other), pods=pods)
    gone = stateful_set(0, name="main-b", uid="uid-b", pool="b", first_broker=100)
    over = scaled(3, 3, answer(range(3), topics={}), sets=(stateful_set(3), gone))

    assert shrinking.actions == (ShrinkSet("main-b", 0),)
    assert over.actions == (DeleteSet("main-b", "uid-b"),)
    assert over.replicas == {"a": 3}


def test_an_empty_set_stays_while_it_has_a_pod_or_is_drawn() -> None:
    """An empty StatefulSet stays while it has a pod or its pool is in the spec."""
    other = stateful_set(0, name="main-b", uid="uid-b", pool="b", first_broker=100)
    with_pod = scaled(1, 1, None, sets=(stateful_set(1), other), pods=(pod(0), pod(100, pool="b")))
    pools = (Pool(name="a", first_broker=0, replicas=1), Pool(name="b", first_broker=100, replicas=0))
    drawn = scaled(1, 1, None, sets=(stateful_set(1), other), pools=pools)

    assert with_pod.actions == ()
    assert drawn.actions == ()
    assert drawn.replicas == {"a": 1, "b": 0}


def test_pods_without_a_set_count_as_running() -> None:
    """Pods count as running while their StatefulSet is recreated, even if the spec has fewer."""
    pools = (Pool(name="a", first_broker=0, replicas=3), Pool(name="b", first_broker=100, replicas=1))
    pods = tuple(pod(broker) for broker in range(5))
    sets = running_sets(pools, (stateful_set(5, terminating=True),), pods)

    assert [(each.pool, each.replicas) for each in sets] == [("a", 5)]
    assert scaled(3, 5, answer(range(5), topics=ON_THREE), sets=sets).replicas == {"a": 5}


def test_metadata_is_asked_for_where_something_leaves() -> None:
    """Metadata is requested only when a broker leaves."""
    assert not needs_metadata(given(3, 3, answer(range(3))))
    assert not needs_metadata(given(3, 3, None))
    assert needs_metadata(given(3, 4, answer(range(4))))
    assert needs_metadata(given(3, 3, answer([0, 1, 2, gone_broker(7)])))


def test_partitions_are_counted_wherever_a_broker_is_named() -> None:
    """A broker's partitions include partitions whose replicas are being added to or removed from the broker."""
    topics = metadata(
        {
            "orders": [
                {"replicas": [0]},
                {"replicas": [0, 1], "adding": [3]},
                {"replicas": [1, 3], "removing": [3]},
            ]
        }
    )

    assert [partitions_on(topics, broker) for broker in (0, 1, 2, 3)] == [2, 2, 0, 2]
