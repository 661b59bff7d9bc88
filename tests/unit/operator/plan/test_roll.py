"""Which broker is restarted next: by what stands in the cluster now, one ready one at a time, the controller last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairlead_operator.plan.actions import RestartBroker, RestartReason
from fairlead_operator.plan.observed import BrokersAnswer, ObservedPod
from fairlead_operator.plan.roll import RollInput, RollPlan, plan_roll
from plan_kit import NEW, answer, claim, gone_broker, old_pod, pod


def plan(pods: Iterable[ObservedPod], says: BrokersAnswer | None, **said: Any) -> RollPlan:
    """Plan for brokers 0, 1 and 2 of a settled pool, but for what is said."""
    facts: dict[str, Any] = {
        "brokers": frozenset({0, 1, 2}),
        "pods": tuple(pods),
        "claims": {broker: claim(broker) for broker in range(3)},
        "wanted": {"a": NEW},
        "settled": frozenset({"a"}),
        "answer": says,
    }
    return plan_roll(RollInput(**{**facts, **said}))


def restarted(planned: RollPlan) -> list[tuple[int, bool]]:
    """Return who is to be restarted, and whether by permit."""
    return [(order.broker, order.permit) for order in planned.restarts]


def test_nothing_is_restarted_while_all_pods_are_the_newest() -> None:
    """Pods with the wanted fingerprints are left alone."""
    planned = plan([pod(0), pod(1), pod(2)], answer([0, 1, 2], controller=0))

    assert planned == RollPlan(pending={}, stuck={})


def test_the_controller_is_restarted_last() -> None:
    """Of ready pods the one with the lowest id goes first, and the controller when no other is left."""
    says = answer([0, 1, 2], controller=0)

    assert restarted(plan([old_pod(0), old_pod(1), old_pod(2)], says)) == [(1, True)]
    assert restarted(plan([old_pod(0), pod(1), old_pod(2)], says)) == [(2, True)]
    assert restarted(plan([old_pod(0), pod(1), pod(2)], says)) == [(0, True)]


def test_an_order_names_the_very_pod_and_all_reasons() -> None:
    """The uid is that of the pod that was seen, so that its successor is never meant."""
    changed = old_pod(1, config_hash="config-1", restart_asked="true")
    resized = {1: claim(1, waits_for_restart_since="2026-05-04T11:30:00Z")}
    planned = plan([pod(0), changed, pod(2)], answer([0, 1, 2]), claims=resized)

    reasons = (
        RestartReason.POD_SPEC_CHANGED,
        RestartReason.CONFIG_CHANGED,
        RestartReason.CLAIM_RESIZED,
        RestartReason.ASKED,
    )
    assert planned.restarts == (RestartBroker(1, "main-a-1", "uid-1", reasons=reasons, permit=True),)
    assert planned.pending == {1: reasons}


def test_a_pod_that_started_after_its_disk_grew_is_left_alone() -> None:
    """The file system grows when a pod starts: one restart is enough, also while the claim still says otherwise."""
    grown = {1: claim(1, waits_for_restart_since="2026-05-04T10:30:00Z")}
    planned = plan([pod(0), pod(1), pod(2)], answer([0, 1, 2]), claims=grown)

    assert planned.pending == {}


def test_a_ready_broker_stays_while_another_is_not_ready() -> None:
    """Also a pod that needs no restart has to be ready first."""
    says = answer([0, 1, 2])
    for others in ([pod(2, ready=False)], [pod(2, terminating=True)], []):
        planned = plan([old_pod(0), old_pod(1), *others], says)

        assert planned.restarts == ()
        assert planned.hindrance is not None
        assert (planned.hindrance.reason, planned.hindrance.brokers) == ("BrokersNotReady", frozenset({2}))
        assert planned.hindrance.message == "broker 2 is not ready"


def test_a_ready_broker_stays_while_another_is_not_registered() -> None:
    """A pod is ready a moment before the cluster knows its broker again."""
    planned = plan([old_pod(0), pod(1), pod(2)], answer([0, 1, gone_broker(2)]))

    assert planned.restarts == ()
    assert planned.hindrance is not None
    assert planned.hindrance.message == "broker 2 is ready, but not registered"


def test_a_pod_that_is_not_ready_goes_first() -> None:
    """Nobody is worse off when a pod goes that serves nothing; by permit where its broker is registered."""
    pods = [old_pod(0), old_pod(1), old_pod(2, ready=False)]

    assert restarted(plan(pods, answer([0, 1, 2]))) == [(2, True)]
    assert restarted(plan(pods, answer([0, 1, gone_broker(2)]))) == [(2, False)]


def test_stuck_pods_with_an_old_template_go_at_once() -> None:
    """The new template may be what they need; nobody is asked for a broker that is not registered."""
    pods = [
        old_pod(0, ready=False, stuck="ImagePullBackOff"),
        old_pod(1, ready=False, stuck="CrashLoopBackOff"),
        pod(2),
    ]

    assert restarted(plan(pods, answer([2]))) == [(0, False), (1, False)]


def test_a_stuck_pod_whose_broker_is_registered_needs_the_permit() -> None:
    """It may live for moments between two crashes, and be missed then."""
    pods = [pod(0), old_pod(1, ready=False, stuck="CrashLoopBackOff"), pod(2)]

    assert restarted(plan(pods, answer([0, 1, 2]))) == [(1, True)]


def test_a_stuck_pod_with_the_newest_template_stops_the_roll() -> None:
    """Restarting it would change nothing, and the next broker would fail the same way."""
    pods = [pod(0, ready=False, stuck="broker: CrashLoopBackOff"), old_pod(1), old_pod(2)]
    planned = plan(pods, answer([1, 2]))

    assert planned.restarts == ()
    assert planned.stuck == {0: "broker: CrashLoopBackOff"}
    assert planned.hindrance is not None
    assert planned.hindrance.reason == "PodFailing"


def test_a_stuck_pod_is_told_of_also_without_a_roll() -> None:
    """The first start may fail as well."""
    planned = plan([pod(0, ready=False, stuck="Unschedulable"), pod(1), pod(2)], None)

    assert planned.stuck == {0: "Unschedulable"}
    assert planned.restarts == ()


def test_ready_brokers_stay_while_nobody_answers() -> None:
    """Without an answer nobody knows whether a broker can be spared."""
    planned = plan([old_pod(0, ready=False), old_pod(1), old_pod(2)], None)

    assert planned.restarts == ()
    assert planned.hindrance is not None
    assert planned.hindrance.reason == "BrokersUnreachable"


def test_pods_of_a_cluster_that_serves_nobody_go_at_once() -> None:
    """Where no pod is ready and no broker answers, as before the first start, there is nobody to ask or to miss one."""
    pods = [old_pod(0, ready=False), old_pod(1, ready=False), pod(2, ready=False)]

    assert restarted(plan(pods, None)) == [(0, False), (1, False)]


def test_stuck_pods_go_also_while_nobody_answers() -> None:
    """The repair of a bad template must not wait for the brokers that it keeps from starting."""
    pods = [pod(0), old_pod(1, ready=False, stuck="ErrImagePull"), pod(2)]

    assert restarted(plan(pods, None)) == [(1, False)]


def test_no_pod_goes_before_its_set_has_the_newest_template() -> None:
    """It would come back as the old one, and be restarted twice."""
    planned = plan([old_pod(0), pod(1), pod(2)], answer([0, 1, 2]), settled=frozenset())

    assert planned.restarts == ()
    assert planned.hindrance is None
    assert set(planned.pending) == {0}


def test_restarts_can_be_forbidden() -> None:
    """The annotation keeps every pod, and it is told who waits."""
    planned = plan([old_pod(0), pod(1), pod(2)], answer([0, 1, 2]), restarts_allowed=False)

    assert planned.restarts == ()
    assert planned.hindrance is not None
    assert planned.hindrance.reason == "RestartsSuspended"


def test_asked_restarts_begin_when_every_pod_is_marked() -> None:
    """An order to the whole Cluster is put on all pods before the first one goes."""
    pods = [pod(0, restart_asked="true"), pod(1), pod(2)]

    assert plan(pods, answer([0, 1, 2]), asking_pods=True).pending == {}
    assert restarted(plan(pods, answer([0, 1, 2]))) == [(0, True)]


def test_brokers_that_are_leaving_are_not_restarted() -> None:
    """They are emptied, and neither their template nor their readiness matters."""
    planned = plan([pod(0), pod(1), old_pod(2, ready=False)], answer([0, 1, 2]), brokers=frozenset({0, 1}))

    assert planned.pending == {}


def test_a_pool_that_is_not_drawn_keeps_its_pods() -> None:
    """Without a wanted template a pod is neither old nor new."""
    assert plan([old_pod(0), pod(1), pod(2)], answer([0, 1, 2]), wanted={}).pending == {}


def test_an_empty_disk_is_given_when_others_have_all_records() -> None:
    """Claim and pod go together, each by its uid."""
    says = answer([0, 1, 2], topics={"orders": [{"replicas": [1, 2]}, {"replicas": [0, 2]}]})
    planned = plan([pod(0), pod(1, new_disk_asked=True), pod(2)], says)

    assert [order.claim for order in planned.restarts] == [("data-main-a-1", "claim-1")]


def test_an_empty_disk_is_refused_where_it_has_the_last_copy() -> None:
    """Partitions that would be lost are named; another pod goes meanwhile."""
    says = answer([0, 1, 2], topics={"orders": [{"replicas": [1, 2], "isr": [1]}, {"replicas": [1]}]})
    planned = plan([pod(0), pod(1, new_disk_asked=True), pod(2)], says)

    assert planned.restarts == ()
    assert planned.hindrance is not None
    assert planned.hindrance.reason == "PartitionsAtRisk"
    assert "orders-0, orders-1" in planned.hindrance.message
    other = plan([pod(0), old_pod(1, new_disk_asked=True), old_pod(2)], says)
    assert [order.broker for order in other.restarts] == [2]


def test_an_empty_disk_waits_until_topics_are_known() -> None:
    """What cannot be seen is not deleted."""
    planned = plan([pod(0), pod(1, new_disk_asked=True), pod(2)], answer([0, 1, 2]))

    assert planned.restarts == ()
    assert planned.hindrance is not None


def test_a_claim_that_somebody_deleted_keeps_the_last_copy_while_its_pod_runs() -> None:
    """It goes with the pod that holds it, so that pod stays for as long as records are nowhere else."""
    going = {broker: claim(broker, terminating=broker == 1) for broker in range(3)}
    pods = [pod(0), old_pod(1), pod(2)]
    at_risk = answer([0, 1, 2], topics={"orders": [{"replicas": [1, 2], "isr": [1]}]})
    safe = answer([0, 1, 2], topics={"orders": [{"replicas": [1, 2]}]})
    kept = plan(pods, at_risk, claims=going)

    assert kept.restarts == ()
    assert kept.hindrance is not None
    assert kept.hindrance.reason == "PartitionsAtRisk"
    assert plan(pods, answer([0, 1, 2]), claims=going).restarts == ()
    assert [(order.broker, order.claim) for order in plan(pods, safe, claims=going).restarts] == [(1, None)]


def test_a_pod_without_a_claim_goes_alone() -> None:
    """Its claim may have been deleted by hand already."""
    says = answer([0, 1, 2], topics={})
    planned = plan([pod(0), pod(1, new_disk_asked=True), pod(2)], says, claims={})

    assert [order.claim for order in planned.restarts] == [None]


def test_a_pod_that_is_going_is_not_restarted_again() -> None:
    """Its order was given already."""
    assert plan([old_pod(0, terminating=True), pod(1), pod(2)], answer([0, 1, 2])).pending == {}


def test_a_broker_learns_its_address_from_outside_by_a_restart() -> None:
    """Once for each address, and not where it tells clients that one already."""
    outside = {0: "broker-0:9520", 1: "lb-1.example.com:9520", 2: "lb-2.example.com:9520"}
    claims = {0: claim(0), 1: claim(1), 2: claim(2, told_address="lb-2.example.com:9520")}
    pods = [pod(0), pod(1), pod(2)]
    planned = plan(pods, answer([0, 1, 2]), advertised=outside, claims=claims)

    assert planned.pending == {1: (RestartReason.ADDRESS_CHANGED,)}
    assert [order.told_address for order in planned.restarts] == [("data-main-a-1", "lb-1.example.com:9520")]
    assert plan(pods, None, advertised=outside).pending == {}
    assert plan(pods, answer([0, 1, 2]), advertised=outside, claims={}).pending == {}
    assert plan(pods, answer([gone_broker(each) for each in range(3)]), advertised=outside).pending == {}


def test_a_broker_forgets_an_address_that_nobody_serves_any_more() -> None:
    """The listener has none from outside now, and the broker still tells clients the old one."""
    claims = {0: claim(0, told_address="broker-0:9520"), 1: claim(1, told_address="lb-1.example.com:9520")}
    planned = plan([pod(0), pod(1), pod(2)], answer([0, 1, 2]), claims=claims)

    assert planned.pending == {0: (RestartReason.ADDRESS_CHANGED,)}
    assert [order.told_address for order in planned.restarts] == [("data-main-a-0", "")]
