"""The order of a roll: one ready broker at a time, the controller last, depending on the cluster's current state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairlead_operator.plan.actions import RestartBroker, RestartReason
from fairlead_operator.plan.observed import BrokersAnswer, ObservedPod
from fairlead_operator.plan.roll import RollInput, RollPlan, announced_by, plan_roll
from plan_kit import NEW, answer, claim, gone_broker, old_pod, pod
from refusals import missing


def plan(pods: Iterable[ObservedPod], says: BrokersAnswer | None, **said: Any) -> RollPlan:
    """Return the plan for brokers 0, 1 and 2 of a settled pool, with the given differences."""
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
    """Return the brokers to restart and, for each broker, whether its restart needs the permit."""
    return [(order.broker, order.permit) for order in planned.restarts]


def test_nothing_is_restarted_while_all_pods_are_the_newest() -> None:
    """Pods with the desired fingerprints are not restarted."""
    planned = plan([pod(0), pod(1), pod(2)], answer([0, 1, 2], controller=0))

    assert planned == RollPlan(pending={}, stuck={})


def test_the_controller_is_restarted_last() -> None:
    """The ready pod with the lowest id is restarted first, and the controller last."""
    says = answer([0, 1, 2], controller=0)

    assert restarted(plan([old_pod(0), old_pod(1), old_pod(2)], says)) == [(1, True)]
    assert restarted(plan([old_pod(0), pod(1), old_pod(2)], says)) == [(2, True)]
    assert restarted(plan([old_pod(0), pod(1), pod(2)], says)) == [(0, True)]


def test_an_order_names_the_very_pod_and_all_reasons() -> None:
    """A restart order contains all reasons, and the uid of the observed pod, so that it never deletes a successor."""
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


def test_a_weaker_mode_restarts_the_brokers() -> None:
    """A pod whose broker was started with a stricter mode than the Cluster wants is restarted."""
    strict = pod(1, security_floor="enforce")
    planned = plan([pod(0), strict, pod(2)], answer([0, 1, 2]))

    assert planned.pending == {1: (RestartReason.SECURITY_LOWERED,)}


def test_a_pod_that_started_after_its_disk_grew_is_left_alone() -> None:
    """A pod that started after its disk grew is not restarted again."""
    grown = {1: claim(1, waits_for_restart_since="2026-05-04T10:30:00Z")}
    planned = plan([pod(0), pod(1), pod(2)], answer([0, 1, 2]), claims=grown)

    assert planned.pending == {}


def test_a_ready_broker_stays_while_another_is_not_ready() -> None:
    """A ready broker is not restarted while the pod of another broker is not ready."""
    says = answer([0, 1, 2])
    for others in ([pod(2, ready=False)], [pod(2, terminating=True)], []):
        planned = plan([old_pod(0), old_pod(1), *others], says)

        assert planned.restarts == ()
        assert planned.hindrance is not None
        assert (planned.hindrance.reason, planned.hindrance.brokers) == ("BrokersNotReady", frozenset({2}))
        assert missing(planned.hindrance.message, 2) == []


def test_a_ready_broker_stays_while_another_is_not_registered() -> None:
    """A ready broker is not restarted while another broker is not registered."""
    planned = plan([old_pod(0), pod(1), pod(2)], answer([0, 1, gone_broker(2)]))

    assert planned.restarts == ()
    assert planned.hindrance is not None
    assert missing(planned.hindrance.message, 2) == []


def test_a_pod_that_is_not_ready_goes_first() -> None:
    """A pod that is not ready is restarted first, with the permit if its broker is registered."""
    pods = [old_pod(0), old_pod(1), old_pod(2, ready=False)]

    assert restarted(plan(pods, answer([0, 1, 2]))) == [(2, True)]
    assert restarted(plan(pods, answer([0, 1, gone_broker(2)]))) == [(2, False)]


def test_stuck_pods_with_an_old_template_go_at_once() -> None:
    """Stuck pods with an old template are restarted at once without the permit if their brokers are not registered."""
    pods = [
        old_pod(0, ready=False, stuck="ImagePullBackOff"),
        old_pod(1, ready=False, stuck="CrashLoopBackOff"),
        pod(2),
    ]

    assert restarted(plan(pods, answer([2]))) == [(0, False), (1, False)]


def test_a_stuck_pod_whose_broker_is_registered_needs_the_permit() -> None:
    """A stuck pod whose broker is registered needs the permit, because the broker may serve clients between crashes."""
    pods = [pod(0), old_pod(1, ready=False, stuck="CrashLoopBackOff"), pod(2)]

    assert restarted(plan(pods, answer([0, 1, 2]))) == [(1, True)]


def test_a_stuck_pod_with_the_newest_template_stops_the_roll() -> None:
    """A stuck pod with the newest template stops the roll, because the next broker would fail the same way."""
    pods = [pod(0, ready=False, stuck="broker: CrashLoopBackOff"), old_pod(1), old_pod(2)]
    planned = plan(pods, answer([1, 2]))

    assert planned.restarts == ()
    assert planned.stuck == {0: "broker: CrashLoopBackOff"}
    assert planned.hindrance is not None
    assert planned.hindrance.reason == "PodFailing"


def test_a_stuck_pod_is_reported_also_without_a_roll() -> None:
    """A stuck pod is reported even without a roll."""
    planned = plan([pod(0, ready=False, stuck="Unschedulable"), pod(1), pod(2)], None)

    assert planned.stuck == {0: "Unschedulable"}
    assert planned.restarts == ()


def test_ready_brokers_stay_while_no_broker_answers() -> None:
    """Ready brokers are not restarted while no broker answers."""
    planned = plan([old_pod(0, ready=False), old_pod(1), old_pod(2)], None)

    assert planned.restarts == ()
    assert planned.hindrance is not None
    assert planned.hindrance.reason == "BrokersUnreachable"


def test_pods_of_a_cluster_that_does_not_serve_go_at_once() -> None:
    """Pods with an old template are restarted at once when no pod is ready and no broker answers."""
    pods = [old_pod(0, ready=False), old_pod(1, ready=False), pod(2, ready=False)]

    assert restarted(plan(pods, None)) == [(0, False), (1, False)]


def test_stuck_pods_go_also_while_no_broker_answers() -> None:
    """Stuck pods with an old template are restarted even while no broker answers."""
    pods = [pod(0), old_pod(1, ready=False, stuck="ErrImagePull"), pod(2)]

    assert restarted(plan(pods, None)) == [(1, False)]


def test_no_pod_goes_before_its_set_has_the_newest_template() -> None:
    """No pod is restarted before its StatefulSet has the newest template."""
    planned = plan([old_pod(0), pod(1), pod(2)], answer([0, 1, 2]), settled=frozenset())

    assert planned.restarts == ()
    assert planned.hindrance is None
    assert set(planned.pending) == {0}


def test_restarts_can_be_forbidden() -> None:
    """No pod is restarted while an annotation forbids restarts, and the waiting broker is reported."""
    planned = plan([old_pod(0), pod(1), pod(2)], answer([0, 1, 2]), restarts_allowed=False)

    assert planned.restarts == ()
    assert planned.hindrance is not None
    assert planned.hindrance.reason == "RestartsSuspended"


def test_asked_restarts_begin_when_every_pod_is_marked() -> None:
    """A requested restart of all brokers begins after every pod has the annotation."""
    pods = [pod(0, restart_asked="true"), pod(1), pod(2)]

    assert plan(pods, answer([0, 1, 2]), asking_pods=True).pending == {}
    assert restarted(plan(pods, answer([0, 1, 2]))) == [(0, True)]


def test_brokers_that_are_leaving_are_not_restarted() -> None:
    """Brokers that are leaving are not restarted."""
    planned = plan([pod(0), pod(1), old_pod(2, ready=False)], answer([0, 1, 2]), brokers=frozenset({0, 1}))

    assert planned.pending == {}


def test_a_pool_that_is_not_drawn_keeps_its_pods() -> None:
    """A pool without a desired template keeps its pods."""
    assert plan([old_pod(0), pod(1), pod(2)], answer([0, 1, 2]), wanted={}).pending == {}


def test_an_empty_disk_is_given_when_others_have_all_records() -> None:
    """If other replicas have all records of a broker, its disk is emptied: its claim and pod are deleted by uid."""
    says = answer([0, 1, 2], topics={"orders": [{"replicas": [1, 2]}, {"replicas": [0, 2]}]})
    planned = plan([pod(0), pod(1, new_disk_asked=True), pod(2)], says)

    assert [order.claim for order in planned.restarts] == [("data-main-a-1", "claim-1")]


def test_an_empty_disk_is_refused_where_it_has_the_last_copy() -> None:
    """A disk with the last copy of a partition is not emptied, and another broker is restarted first."""
    says = answer([0, 1, 2], topics={"orders": [{"replicas": [1, 2], "isr": [1]}, {"replicas": [1]}]})
    planned = plan([pod(0), pod(1, new_disk_asked=True), pod(2)], says)

    assert planned.restarts == ()
    assert planned.hindrance is not None
    assert planned.hindrance.reason == "PartitionsAtRisk"
    assert "orders-0, orders-1" in planned.hindrance.message
    other = plan([pod(0), old_pod(1, new_disk_asked=True), old_pod(2)], says)
    assert [order.broker for order in other.restarts] == [2]


def test_an_empty_disk_waits_until_topics_are_known() -> None:
    """A request for an empty disk waits until the topics are known."""
    planned = plan([pod(0), pod(1, new_disk_asked=True), pod(2)], answer([0, 1, 2]))

    assert planned.restarts == ()
    assert planned.hindrance is not None


def test_a_pod_with_a_deleted_claim_keeps_the_last_copy() -> None:
    """A pod whose claim is being deleted is not restarted while it has the last copy of a partition."""
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
    """The restart of a pod whose claim is already deleted deletes no claim."""
    says = answer([0, 1, 2], topics={})
    planned = plan([pod(0), pod(1, new_disk_asked=True), pod(2)], says, claims={})

    assert [order.claim for order in planned.restarts] == [None]


def test_a_pod_that_is_going_is_not_restarted_again() -> None:
    """A pod that is being deleted is not restarted again."""
    assert plan([old_pod(0, terminating=True), pod(1), pod(2)], answer([0, 1, 2])).pending == {}


def test_a_broker_learns_its_address_from_outside_by_a_restart() -> None:
    """A broker is restarted once for a new external address, unless the broker already advertises the address."""
    outside = {0: "broker-0:9520", 1: "lb-1.example.com:9520", 2: "lb-2.example.com:9520"}
    claims = {0: claim(0), 1: claim(1), 2: claim(2, announced_address="lb-2.example.com:9520")}
    pods = [pod(0), pod(1), pod(2)]
    planned = plan(pods, answer([0, 1, 2]), advertised=outside, claims=claims)

    assert planned.pending == {1: (RestartReason.ADDRESS_CHANGED,)}
    assert [order.announced_address for order in planned.restarts] == [
        ("data-main-a-1", "lb-1.example.com:9520")
    ]
    assert plan(pods, None, advertised=outside).pending == {}
    assert plan(pods, answer([0, 1, 2]), advertised=outside, claims={}).pending == {}
    assert plan(pods, answer([gone_broker(each) for each in range(3)]), advertised=outside).pending == {}


def test_a_broker_forgets_an_address_that_its_listener_lost() -> None:
    """A broker is restarted to drop an external address that the listener no longer has."""
    claims = {
        0: claim(0, announced_address="broker-0:9520"),
        1: claim(1, announced_address="lb-1.example.com:9520"),
    }
    planned = plan([pod(0), pod(1), pod(2)], answer([0, 1, 2]), claims=claims)

    assert planned.pending == {0: (RestartReason.ADDRESS_CHANGED,)}
    assert [order.announced_address for order in planned.restarts] == [("data-main-a-0", "")]
    assert announced_by(answer([0]), 1) == ""
