"""How many brokers each pool has now: more come at once, fewer leave one at a time when they keep nothing."""

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

ON_THREE = {"orders": [{"replicas": [0, 1, 2], "min_isr": 2}]}


def given(
    wanted: int, running: int, says: BrokersAnswer | None, *, meant: Iterable[int] = (), **said: Any
) -> ScaleInput:
    """Return what is seen of pool `a` with so many brokers wanted and running."""
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
    """Plan for what `given` returns."""
    return plan_scale(given(wanted, running, says, meant=meant, **said))


def test_a_new_pool_has_what_the_spec_asks_for() -> None:
    """Nobody is asked before the first brokers start."""
    planned = scaled(3, 0, None, sets=(), pods=())

    assert planned == ScalePlan(replicas={"a": 3}, staying=frozenset({0, 1, 2}))


def test_more_brokers_come_at_once() -> None:
    """Growing waits for nobody, also while brokers do not answer."""
    assert scaled(5, 3, None).replicas == {"a": 5}


def test_brokers_stay_while_nobody_answers() -> None:
    """What they keep is not known."""
    planned = scaled(3, 5, None)

    assert planned.replicas == {"a": 5}
    assert planned.actions == ()
    assert planned.blocked is not None
    assert planned.blocked.reason == "BrokersUnreachable"


def test_what_is_meant_is_told_before_anybody_is_asked() -> None:
    """The status names the brokers first; only then the first of them hears of it."""
    planned = scaled(3, 5, answer(range(5), topics=ON_THREE))

    assert planned.actions == ()
    assert planned.leaving == Leaving(brokers=(3, 4))
    assert planned.replicas == {"a": 5}


def test_all_that_leave_are_cordoned_and_the_highest_is_drained() -> None:
    """Nothing moves from one to the next that leaves."""
    planned = scaled(3, 5, answer(range(5), topics=ON_THREE | {"logs": [{"replicas": [4, 0]}]}), meant=[3, 4])

    assert planned.actions == (CordonBroker(3), CordonBroker(4), DrainBroker(4))
    assert planned.leaving == Leaving(brokers=(3, 4), partitions_left=1)


def test_a_drain_goes_on_until_nothing_is_left() -> None:
    """A replica that is being moved away counts until it is gone."""
    draining = described_broker(4, state="draining", cordoned=True)
    moving = ON_THREE | {"logs": [{"replicas": [0, 4], "removing": [4], "adding": [1]}]}
    says = answer([0, 1, 2, described_broker(3, cordoned=True), draining], topics=moving)
    planned = scaled(3, 5, says, meant=[3, 4])

    assert planned.actions == ()
    assert planned.replicas == {"a": 5}
    assert planned.leaving == Leaving(brokers=(3, 4), partitions_left=1)


def test_a_broker_that_keeps_nothing_loses_its_pod() -> None:
    """One at a time: the next one is drained when this one is gone."""
    draining = described_broker(4, state="draining", cordoned=True)
    says = answer([0, 1, 2, described_broker(3, cordoned=True), draining], topics=ON_THREE)
    planned = scaled(3, 5, says, meant=[3, 4])

    assert planned.replicas == {"a": 4}
    assert planned.actions == ()


def test_an_uncordoned_broker_keeps_its_pod_even_if_it_is_empty() -> None:
    """It could be given a replica in the same moment."""
    planned = scaled(3, 4, answer(range(4), topics=ON_THREE), meant=[3])

    assert planned.replicas == {"a": 4}
    assert planned.actions == (CordonBroker(3), DrainBroker(3))


def test_a_broker_keeps_its_pod_until_who_tells_of_replicas_knows_of_its_cordon() -> None:
    """Each question may be answered by another broker, whose older view may lack a replica placed before the cordon."""
    cordoned = described_broker(3, cordoned=True)
    says = answer([0, 1, 2, cordoned], topics=ON_THREE)
    older = replace(says, metadata=metadata(ON_THREE, [*map(described_broker, range(4))]))

    assert scaled(3, 4, older, meant=[3]).replicas == {"a": 4}
    assert scaled(3, 4, says, meant=[3]).replicas == {"a": 3}


def test_the_next_broker_waits_until_the_pod_of_the_last_one_is_gone() -> None:
    """Two brokers never leave at the same time."""
    says = answer(
        [0, 1, 2, described_broker(3, cordoned=True), gone_broker(4, cordoned=True)], topics=ON_THREE
    )
    planned = scaled(3, 4, says, meant=[3, 4], pods=tuple(pod(broker) for broker in range(5)))

    assert planned.replicas == {"a": 4}
    assert planned.actions == ()


def test_a_broker_that_never_came_leaves_at_once() -> None:
    """The cluster does not know it, so it keeps nothing."""
    planned = scaled(3, 4, answer(range(3), topics=ON_THREE), meant=[3])

    assert planned.replicas == {"a": 3}


def test_a_gone_broker_is_forgotten_when_it_keeps_nothing() -> None:
    """It has no pod, nobody asks for it, and no partition names it."""
    says = answer([0, 1, 2, gone_broker(4, cordoned=True)], topics=ON_THREE)

    assert scaled(3, 3, says, meant=[4]).actions == (UnregisterBroker(4),)
    assert scaled(3, 3, says, meant=[4]).leaving == Leaving(brokers=(4,))


def test_a_gone_broker_that_keeps_replicas_is_not_forgotten() -> None:
    """It may come back with them."""
    says = answer([0, 1, 2, gone_broker(4)], topics={"logs": [{"replicas": [0, 4]}]})

    assert scaled(3, 3, says).actions == ()


def test_a_gone_broker_that_is_wanted_is_not_forgotten() -> None:
    """Its pod comes back."""
    says = answer([0, 1, gone_broker(2)], topics={})

    assert scaled(3, 3, says, pods=(pod(0), pod(1))).actions == ()


def test_what_was_meant_is_over_when_the_brokers_are_forgotten() -> None:
    """The status names nobody any more."""
    assert scaled(3, 3, answer(range(3), topics={}), meant=[3, 4]).leaving is None


def test_a_raised_spec_takes_everybody_back() -> None:
    """The drain ends and the cordons are taken away; it is remembered until the brokers say so."""
    draining = described_broker(4, state="draining", cordoned=True)
    says = answer([0, 1, 2, described_broker(3, cordoned=True), draining], topics=ON_THREE)
    planned = scaled(5, 5, says, meant=[3, 4])

    assert planned.actions == (UncordonBroker(3), UndrainBroker(4), UncordonBroker(4))
    assert planned.leaving == Leaving(brokers=(3, 4))
    assert scaled(5, 5, answer(range(5), topics=ON_THREE), meant=[3, 4]).leaving is None


def test_a_broker_that_somebody_else_cordoned_stays_cordoned() -> None:
    """Only those that the operator meant to take away are taken back."""
    says = answer([0, 1, described_broker(2, cordoned=True)], topics={})

    assert scaled(3, 3, says).actions == ()


def test_taking_back_waits_for_brokers_that_answer() -> None:
    """Nothing of what was meant is forgotten while nobody can be asked."""
    assert scaled(5, 5, None, meant=[3, 4]).leaving == Leaving(brokers=(3, 4))


def test_a_broker_that_is_wanted_back_and_unknown_is_meant_no_longer() -> None:
    """It was forgotten already and comes as a new one."""
    assert scaled(4, 3, answer(range(3), topics={}), meant=[3]).leaving is None


def test_fewer_brokers_than_replicas_are_refused() -> None:
    """Topics and numbers are named, and the set stays as it is."""
    planned = scaled(2, 3, answer(range(3), topics=ON_THREE), meant=[2])

    assert planned.replicas == {"a": 3}
    assert planned.staying == frozenset({0, 1})
    assert planned.actions == ()
    assert planned.leaving == Leaving(brokers=(2,))
    assert planned.blocked is not None
    assert planned.blocked.reason == "ReplicationFactor"
    assert planned.blocked.message.startswith(
        "2 brokers would be left, and 3 are needed for the replicas of orders"
    )


def test_a_broker_that_may_not_leave_is_looked_after_like_the_others() -> None:
    """A refusal may stand for weeks, in which images and configuration change."""
    refused = scaled(2, 3, answer(range(3), topics=ON_THREE))
    announced = scaled(2, 3, answer(range(3), topics={}))

    assert refused.staying == scaled(2, 3, None).staying == frozenset({0, 1, 2})
    assert announced.staying == frozenset({0, 1})


def test_so_few_brokers_that_none_could_be_restarted_are_refused() -> None:
    """There has to be one more than must be in sync; a topic with one replica asks for nothing."""
    strict = {"orders": [{"replicas": [0, 1], "min_isr": 2}], "single": [{"replicas": [0], "min_isr": 1}]}
    planned = scaled(2, 3, answer(range(3), topics=strict))

    assert planned.blocked is not None
    assert planned.blocked.reason == "MinInSyncReplicas"
    assert "orders" in planned.blocked.message
    assert "single" not in planned.blocked.message
    single = scaled(1, 2, answer(range(2), topics={"single": [{"replicas": [1]}]}))
    assert single.blocked is None


def test_the_last_broker_never_leaves() -> None:
    """A pool without brokers beside no other would be the end of the cluster."""
    planned = scaled(0, 1, answer([0], topics={}))

    assert planned.replicas == {"a": 1}
    assert planned.blocked is not None


def test_many_topics_are_counted() -> None:
    """A message names ten and counts the rest."""
    many = {f"topic-{number:02}": [{"replicas": [0, 1, 2]}] for number in range(12)}
    planned = scaled(2, 3, answer(range(3), topics=many))

    assert planned.blocked is not None
    assert "topic-09 and 2 more" in planned.blocked.message


def test_a_drain_that_cannot_end_names_its_partitions() -> None:
    """They have nowhere to go."""
    stuck = described_broker(3, state="draining", cordoned=True, immovable=["logs-0"])
    says = answer([0, 1, 2, stuck], topics={"logs": [{"replicas": [3, 0, 1]}]})
    planned = scaled(3, 4, says, meant=[3])

    assert planned.blocked is not None
    assert planned.blocked.reason == "DrainStuck"
    assert "logs-0" in planned.blocked.message
    assert planned.replicas == {"a": 4}


def test_a_pool_that_left_the_spec_shrinks_and_goes() -> None:
    """Its set is not drawn any more: it is lowered in place and deleted when it is empty."""
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
    """A pool of the spec with no brokers keeps its set."""
    other = stateful_set(0, name="main-b", uid="uid-b", pool="b", first_broker=100)
    with_pod = scaled(1, 1, None, sets=(stateful_set(1), other), pods=(pod(0), pod(100, pool="b")))
    pools = (Pool(name="a", first_broker=0, replicas=1), Pool(name="b", first_broker=100, replicas=0))
    drawn = scaled(1, 1, None, sets=(stateful_set(1), other), pools=pools)

    assert with_pod.actions == ()
    assert drawn.actions == ()
    assert drawn.replicas == {"a": 1, "b": 0}


def test_pods_without_a_set_count_as_running() -> None:
    """While a set is made anew, a spec that asks for fewer takes nobody by accident."""
    pools = (Pool(name="a", first_broker=0, replicas=3), Pool(name="b", first_broker=100, replicas=1))
    pods = tuple(pod(broker) for broker in range(5))
    sets = running_sets(pools, (stateful_set(5, terminating=True),), pods)

    assert [(each.pool, each.replicas) for each in sets] == [("a", 5)]
    assert scaled(3, 5, answer(range(5), topics=ON_THREE), sets=sets).replicas == {"a": 5}


def test_metadata_is_asked_for_where_something_leaves() -> None:
    """Topics may be many: they are not listed for nothing."""
    assert not needs_metadata(given(3, 3, answer(range(3))))
    assert not needs_metadata(given(3, 3, None))
    assert needs_metadata(given(3, 4, answer(range(4))))
    assert needs_metadata(given(3, 3, answer([0, 1, 2, gone_broker(7)])))


def test_partitions_are_counted_wherever_a_broker_is_named() -> None:
    """Replicas that come and go count as well."""
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
