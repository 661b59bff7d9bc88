"""The status of a Cluster: equal facts lead to equal text, and times change only when a condition changes.

The tests share one file because every condition is a part of the same status and depends on the same facts.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_status import ClusterStatus, EtcdStatus, ScaleDownStatus
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, Truth, condition, find_condition, rfc3339
from fairlead_operator.plan.actions import Outcomes, ReplaceSet, RestartBroker, RestartReason, RestartRefusal
from fairlead_operator.plan.observed import Observed
from fairlead_operator.plan.roll import Hindrance, RollPlan
from fairlead_operator.plan.scale import Blocked, Leaving, ScalePlan, StoragePlan
from fairlead_operator.plan.status import Facts, Outside, cluster_status, paused_status, unreadable_status
from plan_kit import NEW, NOW, answer, gone_broker, old_pod, pod, stateful_set
from refusals import missing

LATER = NOW + timedelta(minutes=1)
MUCH_LATER = NOW + timedelta(minutes=6)
ALL = (pod(0), pod(1), pod(2))
ETCD_SET = stateful_set(3, name="main-etcd", pool="")
RESTART = RestartBroker(1, "main-a-1", "uid-1", (RestartReason.CONFIG_CHANGED,), permit=True)


def cluster(status: ClusterStatus | None = None, **spec: Any) -> Cluster:
    """Return a Cluster of three brokers with the given status."""
    pool = {"name": "a", "replicas": 3, "storage": {"size": "10Gi"}}
    manifest = {
        "metadata": {"name": "main", "namespace": "shop", "generation": 7},
        "spec": {"brokers": [pool], **spec},
        "status": {} if status is None else status.manifest(),
    }
    return Cluster.parse(manifest)


def facts(before: ClusterStatus | None = None, *, now: datetime = NOW, **said: Any) -> Facts:
    """Return facts about three ready brokers that answer, with the given differences."""
    staying = said.pop("staying", {0, 1, 2})
    observed: dict[str, Any] = {
        "pods": ALL,
        "sets": (stateful_set(3),),
        "brokers": answer([0, 1, 2]),
        "etcd_set": ETCD_SET,
    }
    seen = ("pods", "sets", "etcd_set", "brokers", "silence", "refused", "console_fault")
    observed |= {name: said.pop(name) for name in seen if name in said}
    scale = said.pop("scale", ScalePlan(replicas={"a": 3}, staying=frozenset(staying)))
    known: dict[str, Any] = {
        "cluster": cluster(before, **said.pop("spec", {})),
        "observed": Observed(now=now, **observed),
        "scale": scale,
        "roll": RollPlan(pending={}, stuck={}),
        "storage": StoragePlan(sizes={}),
        "wanted": {"a": NEW},
        "forbidden": {},
        "outcomes": Outcomes(),
        "bootstrap": "http://main-bootstrap.shop.svc:9520",
        "addresses": {1: "b:9520", 0: "a:9520"},
    }
    return Facts(**{**known, **said})


def after(given: Facts) -> ClusterStatus:
    """Return the status after a pass over the given facts."""
    return cluster_status(given)


READY = cluster_status(facts())


def found(status: ClusterStatus, type_: ConditionName) -> Condition:
    """Return a condition, which must be present."""
    condition_found = find_condition(status.conditions, type_)
    assert condition_found is not None, f"no {type_} in {status.conditions}"
    return condition_found


def state_of(status: ClusterStatus, type_: ConditionName) -> tuple[str, str]:
    """Return the status and the reason of a condition."""
    return found(status, type_).status, found(status, type_).reason


def types(status: ClusterStatus) -> set[str]:
    """Return the types of all conditions."""
    return {each.type for each in status.conditions}


def test_the_status_of_a_cluster_at_rest() -> None:
    """The status of a settled Cluster contains its counts, pools, release and bootstrap address."""
    assert state_of(READY, ConditionName.READY) == ("True", "Available")
    assert state_of(READY, ConditionName.PROGRESSING) == ("False", "UpToDate")
    assert types(READY) == {"Ready", "Progressing", "Warning"}
    assert READY.manifest() == {
        "observedGeneration": 7,
        "conditions": [each.manifest() for each in READY.conditions],
        "clusterId": "id-of-main",
        "version": "1.2.0",
        "formatVersion": 1,
        "brokers": {"desired": 3, "ready": 3, "summary": "3/3"},
        "pools": [{"name": "a", "replicas": 3, "ready": 3, "updated": 3, "brokerIds": [0, 1, 2]}],
        "listeners": [
            {
                "name": "data",
                "type": "internal",
                "bootstrap": "http://main-bootstrap.shop.svc:9520",
                "brokers": [{"id": 0, "address": "a:9520"}, {"id": 1, "address": "b:9520"}],
            }
        ],
    }


def test_clients_outside_have_a_listener_of_their_own() -> None:
    """The status lists the external addresses, and warns if external clients cannot reach a broker, with the reason."""
    known, unknown = Outside(bootstrap="b", addresses={0: "lb:1"}), Outside(bootstrap="", addresses={})
    cases = (("nodeport", known), ("loadbalancer", replace(unknown, deaf=frozenset({1}))))
    unrouted = replace(known, missing_kind="HTTPRoute")
    seen, deaf, nodes, proxy, gateway = (
        after(facts(READY, spec={"listeners": {"data": {"type": type_}}}, outside=outside))
        for type_, outside in (*cases, ("nodeport", unknown), ("clusterip", unknown), ("clusterip", unrouted))
    )
    listed = [(each.name, each.bootstrap, each.brokers[0].address) for each in seen.listeners]

    assert listed == [("data", "http://main-bootstrap.shop.svc:9520", "a:9520"), ("external", "b", "lb:1")]
    assert {state_of(each, ConditionName.WARNING) for each in (seen, proxy)} == {("True", "SecurityOpen")}
    assert state_of(deaf, ConditionName.WARNING) == ("True", "SeveralWarnings")
    assert state_of(nodes, ConditionName.WARNING) == ("True", "NoExternalAddress")
    assert state_of(gateway, ConditionName.WARNING) == ("True", "RouteKindMissing")


@pytest.mark.parametrize(
    ("status", "reason", "progress"),
    [
        ("False", "Propagating", ("True", "ReplacingCertificates")),
        ("True", "Replacing", ("True", "ReplacingCertificates")),
        ("True", "Current", ("False", "UpToDate")),
        ("False", "NotOurs", ("False", "UpToDate")),
    ],
)
def test_certificates_have_a_condition_and_are_progress_while_brokers_load_them(
    status: Truth, reason: str, progress: tuple[str, str]
) -> None:
    """The status has the condition of the certificates; a replacement is progress until its last step."""
    given = condition(ConditionName.CERTIFICATES_READY, status, reason, "broker 1", now=NOW)
    found = after(facts(READY, certificates=given))

    assert state_of(found, ConditionName.CERTIFICATES_READY) == (status, reason)
    assert state_of(found, ConditionName.PROGRESSING) == progress


def test_the_same_facts_later_give_the_same_status() -> None:
    """The status does not change while the facts stay the same."""
    assert cluster_status(facts(READY, now=MUCH_LATER)) == READY


def test_a_cluster_that_starts_is_not_ready() -> None:
    """A Cluster that was never ready is `Starting`; the message names the missing brokers and the causes."""
    stuck = pod(2, ready=False, stuck="broker: ErrImagePull")
    status = cluster_status(facts(pods=(pod(0), stuck), brokers=None))

    assert state_of(status, ConditionName.READY) == ("False", "Starting")
    assert state_of(status, ConditionName.PROGRESSING) == ("True", "Creating")
    assert missing(found(status, ConditionName.READY).message, 1, 2, "main-a-2", "ErrImagePull") == []


def test_a_cluster_stays_ready_while_one_broker_is_away() -> None:
    """A Cluster stays ready while one broker is missing, and is not ready while two brokers are missing."""
    one = after(facts(READY, pods=(pod(0), pod(1), pod(2, ready=False))))
    two = after(facts(READY, pods=(pod(0), pod(1, ready=False), pod(2, terminating=True))))
    back = after(facts(two, pods=(pod(0), pod(1), pod(2, ready=False))))

    assert state_of(one, ConditionName.READY) == ("True", "Available")
    assert state_of(two, ConditionName.READY) == ("False", "BrokersNotReady")
    assert state_of(back, ConditionName.READY) == ("True", "Available")


def test_a_single_broker_is_away_for_all() -> None:
    """A Cluster is not ready while its only broker is missing, unless the operator is restarting that broker."""
    single: dict[str, Any] = {"staying": {0}, "brokers": None}
    away = after(facts(READY, pods=(), **single))
    order = RestartBroker(0, "main-a-0", "uid-0", (RestartReason.CONFIG_CHANGED,), permit=True)
    restarting = after(
        facts(READY, pods=(pod(0, ready=False),), outcomes=Outcomes(restarted=[order]), **single)
    )

    assert state_of(away, ConditionName.READY) == ("False", "BrokersNotReady")
    assert state_of(restarting, ConditionName.READY) == ("True", "Available")


def test_new_brokers_take_nothing_from_readiness() -> None:
    """New brokers affect readiness only once they are registered."""
    status = after(facts(READY, staying=set(range(6)), pods=ALL))

    assert state_of(status, ConditionName.READY) == ("True", "Available")
    assert state_of(status, ConditionName.PROGRESSING) == ("True", "ScalingUp")
    assert status.brokers.summary == "3/6"


def test_brokers_are_added_until_they_are_ready() -> None:
    """A Cluster is `ScalingUp` until its new brokers are ready, even if they are registered."""
    coming = after(facts(READY, staying=set(range(4))))
    known = after(
        facts(coming, staying=set(range(4)), brokers=answer(range(4)), pods=(*ALL, pod(3, ready=False)))
    )
    done = after(facts(known, staying=set(range(4)), brokers=answer(range(4)), pods=(*ALL, pod(3))))

    assert state_of(coming, ConditionName.PROGRESSING) == ("True", "ScalingUp")
    assert state_of(known, ConditionName.PROGRESSING) == ("True", "ScalingUp")
    assert state_of(done, ConditionName.PROGRESSING) == ("False", "UpToDate")


def test_an_order_to_restart_all_is_a_roll_from_its_first_look_on() -> None:
    """An order to restart all brokers is reported as a roll before the pods have the annotation."""
    given = facts(READY)
    asked = given.cluster.metadata.model_copy(update={"annotations": {"fairlead.dev/restart": "weekly"}})
    status = after(replace(given, cluster=given.cluster.model_copy(update={"metadata": asked})))

    assert state_of(status, ConditionName.PROGRESSING) == ("True", "Rolling")


@pytest.mark.parametrize(
    "away",
    [
        {"sets": ()},
        {"sets": (stateful_set(3, terminating=True),)},
        {"etcd_set": None},
        {"etcd_set": replace(ETCD_SET, terminating=True)},
    ],
)
def test_a_set_that_is_replaced_is_under_way_until_it_is_there_again(away: dict[str, Any]) -> None:
    """The replacement of a StatefulSet counts as progress until it exists.

    An external etcd has no StatefulSet, so a missing StatefulSet does not count as progress.
    """
    status = after(facts(READY, **away))
    outside = {"etcd": {"external": {"endpoints": ["http://etcd:2379"]}}}

    assert state_of(status, ConditionName.PROGRESSING) == ("True", "ResizingStorage")
    assert state_of(after(facts(READY, etcd_set=None, spec=outside)), ConditionName.PROGRESSING)[0] == "False"


def test_a_roll_names_the_restarted_and_the_next_broker() -> None:
    """The status of a roll names the restarted broker until it is back, then the next broker, and finally no broker."""
    pending = {1: (RestartReason.CONFIG_CHANGED,), 2: (RestartReason.POD_SPEC_CHANGED, RestartReason.ASKED)}
    roll = RollPlan(pending=pending, stuck={})
    begun = after(facts(READY, roll=roll, outcomes=Outcomes(restarted=[RESTART])))
    left = RollPlan(pending={2: pending[2]}, stuck={})
    coming = after(facts(begun, now=LATER, roll=left, pods=(pod(0), pod(1, ready=False), old_pod(2))))
    unknown = after(facts(begun, now=LATER, roll=left, brokers=answer([0, gone_broker(1), 2])))
    following = after(facts(begun, now=LATER, roll=left))
    waiting = after(facts(following, now=MUCH_LATER, roll=left))
    over = after(facts(waiting, now=MUCH_LATER))

    assert begun.roll is not None
    assert begun.roll.manifest() == {"brokerId": 1, "reason": "ConfigChanged", "since": rfc3339(NOW)}
    assert state_of(begun, ConditionName.PROGRESSING) == ("True", "Rolling")
    assert coming.roll == begun.roll
    assert coming.pools[0].updated == 2
    assert unknown.roll == begun.roll
    assert following.roll is not None
    assert following.roll.manifest() == {
        "brokerId": 2,
        "reason": "PodSpecChanged, RestartAsked",
        "since": rfc3339(LATER),
    }
    assert waiting.roll == following.roll
    assert over.roll is None


def test_the_last_broker_of_a_roll_is_still_coming_back() -> None:
    """A roll continues until its last restarted broker is ready."""
    begun = after(facts(READY, outcomes=Outcomes(restarted=[RESTART])))
    status = after(facts(begun, pods=(pod(0), pod(1, ready=False), pod(2))))

    assert state_of(status, ConditionName.PROGRESSING) == ("True", "Rolling")
    assert status.roll is not None
    assert status.roll.broker_id == RESTART.broker


def test_the_release_is_reported_after_the_last_restart() -> None:
    """The new release is reported when no broker is left to restart."""
    before = READY.model_copy(update={"version": "1.1.0"})
    roll = RollPlan(pending={2: (RestartReason.POD_SPEC_CHANGED,)}, stuck={})

    assert after(facts(before, roll=roll)).version == "1.1.0"
    assert after(facts(before)).version == "1.2.0"
    assert after(facts(before, brokers=None)).version == "1.1.0"


def test_a_refusal_is_reported_when_it_lasts() -> None:
    """A restart that the brokers refuse for a while is reported with the affected partitions."""
    pending = {2: (RestartReason.ASKED,)}
    refused = Outcomes(
        refusals=[RestartRefusal(2, "too few", tuple(f"orders-{index}" for index in range(12)))]
    )
    given: dict[str, Any] = {"roll": RollPlan(pending=pending, stuck={}), "outcomes": refused}
    first = after(facts(READY, **given))
    lasting = after(facts(first, now=LATER, **given))
    held = Outcomes(refusals=[RestartRefusal(2, "broker 0 has the permit")])

    assert "RollBlocked" not in types(first)
    assert state_of(lasting, ConditionName.ROLL_BLOCKED) == ("True", "PartitionsAtRisk")
    assert "orders-9 and 2 more" in found(lasting, ConditionName.ROLL_BLOCKED).message
    blocked = after(facts(first, now=LATER, **{**given, "outcomes": held}))
    assert state_of(blocked, ConditionName.ROLL_BLOCKED) == ("True", "PermitHeld")


def test_another_broker_is_waited_for_a_while_and_ones_own_for_longer() -> None:
    """A restarted broker may be missing for longer than any other broker before the roll is blocked."""
    pending = {2: (RestartReason.ASKED,)}
    begun = after(facts(READY, outcomes=Outcomes(restarted=[RESTART])))

    def blocked(broker: int, now: datetime) -> bool:
        hindrance = Hindrance("BrokersNotReady", f"broker {broker} is not ready", frozenset({broker}))
        roll = RollPlan(pending=pending, stuck={}, hindrance=hindrance)
        young = rfc3339(NOW + timedelta(seconds=1))
        away = (pod(0, ready=broker != 0), pod(1, ready=broker != 1, created=young), pod(2))
        return "RollBlocked" in types(after(facts(begun, now=now, roll=roll, pods=away)))

    assert not blocked(1, LATER)
    assert blocked(1, MUCH_LATER)
    assert not blocked(0, NOW)
    assert blocked(0, LATER)


def test_a_broker_missing_before_its_turn_is_reported_soon() -> None:
    """A broker that is missing before its turn blocks the roll, because the operator has not restarted it."""
    pending = {1: (RestartReason.ASKED,)}
    hindrance = Hindrance("BrokersNotReady", "broker 1 is ready, but not registered", frozenset({1}))
    roll = RollPlan(pending=pending, stuck={}, hindrance=hindrance)
    first = after(facts(READY, roll=roll))
    status = after(facts(first, now=LATER, roll=roll))

    assert first.roll is not None
    assert first.roll.broker_id == 1
    assert state_of(status, ConditionName.ROLL_BLOCKED) == ("True", "BrokersNotReady")


def test_a_missing_broker_is_reported_with_its_late_partitions() -> None:
    """The message of a blocked roll names the partitions in which the missing broker is behind, if they are known."""
    hindrance = Hindrance("BrokersNotReady", "broker 0 is not ready", frozenset({0}))
    roll = RollPlan(pending={1: (RestartReason.ASKED,)}, stuck={}, hindrance=hindrance)
    first = after(facts(READY, roll=roll))
    replicas = [{"replicas": [0, 1], "isr": [1]}, {"replicas": [0, 1]}, {"replicas": [1, 2], "isr": [2]}]

    def message(topics: dict[str, Any] | None) -> str:
        status = after(facts(first, now=LATER, roll=roll, brokers=answer([0, 1, 2], topics=topics)))
        return found(status, ConditionName.ROLL_BLOCKED).message

    assert missing(message(None), 0) == []
    assert message({"orders": replicas[1:]}) == message(None)
    assert message({"orders": replicas}).startswith(message(None))
    assert re.findall(r"orders-\d", message({"orders": replicas})) == ["orders-0"]


@pytest.mark.parametrize("reason", ["RestartsSuspended", "BrokersUnreachable"])
def test_lasting_obstacles_are_reported_at_once(reason: str) -> None:
    """An obstacle that waiting cannot remove is reported at once."""
    roll = RollPlan(pending={2: (RestartReason.ASKED,)}, stuck={}, hindrance=Hindrance(reason, "because"))
    status = after(facts(READY, roll=roll))

    assert state_of(status, ConditionName.ROLL_BLOCKED) == ("True", reason)
    assert found(status, ConditionName.ROLL_BLOCKED).message == "because"


def test_an_open_cluster_has_a_warning() -> None:
    """A Cluster in the mode Open has a warning, unless it has any other warning."""
    modes = [
        after(facts(READY, spec={"security": {"mode": mode}})) for mode in ("Open", "Observe", "Enforce")
    ]
    alone = after(facts(READY, staying={0}))

    assert state_of(modes[0], ConditionName.WARNING) == ("True", "SecurityOpen")
    assert all("Warning" not in types(each) for each in modes[1:])
    assert state_of(alone, ConditionName.WARNING) == ("True", "SingleBroker")


def test_a_pod_that_fails_with_the_newest_template_is_reported() -> None:
    """A stuck pod with the newest template blocks a roll, even on the last broker; without a roll, it is a warning."""
    stuck = {1: "CrashLoopBackOff"}
    idle = after(facts(READY, roll=RollPlan(pending={}, stuck=stuck)))
    rolling = after(facts(READY, roll=RollPlan(pending={2: (RestartReason.ASKED,)}, stuck=stuck)))
    begun = after(facts(READY, outcomes=Outcomes(restarted=[RESTART])))
    away = (pod(0), pod(1, ready=False), pod(2))
    last = after(facts(begun, pods=away, roll=RollPlan(pending={}, stuck={RESTART.broker: "OOMKilled"})))

    assert "RollBlocked" not in types(idle)
    assert state_of(idle, ConditionName.WARNING) == ("True", "PodFailing")
    assert found(idle, ConditionName.WARNING).message == "broker 1: CrashLoopBackOff"
    for status in (rolling, last):
        assert state_of(status, ConditionName.ROLL_BLOCKED) == ("True", "PodFailing")
        assert state_of(status, ConditionName.WARNING) == ("True", "SecurityOpen")


def test_leaving_brokers_are_reported_and_counted() -> None:
    """A scale-down is reported with the draining broker, all leaving brokers, and the reason that blocks it."""
    leaving = Leaving(brokers=(3, 4), partitions_left=6)
    blocked = Blocked(reason="DrainStuck", message="nowhere to go")
    scale = ScalePlan(replicas={"a": 5}, leaving=leaving, blocked=blocked, staying=frozenset({0, 1, 2}))
    pods = tuple(pod(broker) for broker in range(5))
    status = after(facts(READY, scale=scale, pods=pods, sets=(stateful_set(5),)))

    assert status.scale_down == ScaleDownStatus(broker_id=4, broker_ids=(3, 4), partitions_left=6)
    assert state_of(status, ConditionName.PROGRESSING) == ("True", "ScalingDown")
    assert state_of(status, ConditionName.SCALE_DOWN_BLOCKED) == ("True", "DrainStuck")
    assert status.pools[0].replicas == 5
    assert status.brokers.summary == "3/3"


def test_a_removed_pool_is_reported_until_it_is_gone() -> None:
    """The pods of a pool that was removed from the spec are counted in the status until they are gone."""
    pods = (*ALL, pod(100, pool="b"))
    other = stateful_set(0, name="main-b", pool="b", first_broker=100)
    status = after(facts(READY, pods=pods, sets=(other,)))

    assert [(each.name, each.replicas, each.updated) for each in status.pools] == [("a", 3, 3), ("b", 1, 0)]


def test_storage_is_reported() -> None:
    """A growing disk is reported as progress; a refused resize is reported with the API server's message."""
    growing = after(facts(READY, storage=StoragePlan(sizes={}, growing=("data-main-a-0",))))
    replaced = after(facts(READY, storage=StoragePlan(sizes={}, replaced=(ReplaceSet("main-a", "u"),))))
    by_class = Outcomes(refused_resizes=["only if the storageclass supports it"] * 2)
    blocked = after(facts(READY, outcomes=by_class))
    shrinking = after(facts(READY, storage=StoragePlan(sizes={}, refused=("cannot shrink",))))

    assert state_of(growing, ConditionName.PROGRESSING) == ("True", "ResizingStorage")
    assert state_of(replaced, ConditionName.PROGRESSING) == ("True", "ResizingStorage")
    assert state_of(blocked, ConditionName.STORAGE_BLOCKED) == ("True", "ExpansionNotAllowed")
    assert found(blocked, ConditionName.STORAGE_BLOCKED).message == by_class.refused_resizes[0]
    assert state_of(shrinking, ConditionName.STORAGE_BLOCKED) == ("True", "ExpansionRefused")


def test_warnings_are_reported_one_by_one_or_together() -> None:
    """A single warning has its own reason, and several warnings have a common reason."""
    forbidden = after(facts(READY, forbidden={"a.b": "a.b is unknown"}))
    unseen = after(facts(READY, console_fault="the console has no ready pod"))
    silent = after(facts(READY, brokers=None, silence="no broker answers"))
    several = after(
        facts(
            READY,
            staying={0},
            spec={"formatVersion": 3},
            outcomes=Outcomes(refused_calls=["no"], refused_objects=["quota"], refused_quotas=["user:a.*"]),
        )
    )

    assert state_of(forbidden, ConditionName.WARNING) == ("True", "ForbiddenConfig")
    assert state_of(unseen, ConditionName.WARNING) == ("True", "ConsoleNotReady")
    assert state_of(unseen, ConditionName.READY)[0] == "True"
    assert state_of(silent, ConditionName.WARNING) == ("True", "BrokersUnreachable")
    assert state_of(several, ConditionName.WARNING) == ("True", "SeveralWarnings")
    parts = found(several, ConditionName.WARNING).message.split("; ")
    assert parts[:3] == ["InvalidConfigValue: no", "ObjectsRefused: quota", "QuotaConflict: user:a.*"]
    assert [part.partition(": ")[0] for part in parts[3:]] == ["SingleBroker", "FormatNotSupported"]
    assert re.findall(r"\d", parts[4]) == ["3", "1"]


def test_refused_objects_keep_a_new_cluster_from_being_ready() -> None:
    """Refused objects keep a new Cluster from being ready, but a running Cluster stays ready."""
    refused = Outcomes(refused_objects=["StatefulSet shop/main-a: quota"])
    new = cluster_status(facts(pods=(), outcomes=refused))
    running = after(facts(READY, pods=(pod(0), pod(1)), outcomes=refused))

    assert state_of(new, ConditionName.READY) == ("False", "PodsRefused")
    assert state_of(running, ConditionName.READY) == ("True", "Available")


def test_refused_pods_keep_a_new_cluster_from_being_ready() -> None:
    """Refused pods of brokers or etcd keep a new Cluster from being ready, and the API server's message is reported."""
    refused = {broker: f'pods "main-a-{broker}" is forbidden: exceeded quota' for broker in (1, 2)}
    new = cluster_status(facts(pods=(pod(0),), brokers=None, refused=refused))
    etcd = cluster_status(facts(pods=(), brokers=None, etcd_refused="exceeded quota: etcd"))
    said = f"the pods of brokers 1, 2 are refused: {refused[1]}"

    assert state_of(new, ConditionName.READY) == ("False", "PodsRefused")
    assert found(new, ConditionName.READY).message == said
    assert said in found(new, ConditionName.WARNING).message
    assert state_of(etcd, ConditionName.READY) == ("False", "PodsRefused")
    assert "exceeded quota: etcd" in found(etcd, ConditionName.READY).message


def test_refused_pods_of_a_running_cluster_are_a_warning() -> None:
    """Refused pods of a running Cluster are a warning, and a roll that waits for them quotes the refusal."""
    refused = {2: "exceeded quota"}
    hindrance = Hindrance("BrokersNotReady", "broker 2 is not ready", frozenset({2}))
    roll = RollPlan(pending={1: (RestartReason.ASKED,)}, stuck={}, hindrance=hindrance)
    first = after(facts(READY, roll=roll))
    status = after(facts(first, now=LATER, roll=roll, pods=ALL[:2], refused=refused))
    two = after(facts(READY, pods=ALL[:1], refused={1: "exceeded quota", **refused}))

    assert state_of(status, ConditionName.READY) == ("True", "Available")
    assert state_of(status, ConditionName.WARNING) == ("True", "ObjectsRefused")
    assert "exceeded quota" in found(status, ConditionName.ROLL_BLOCKED).message
    assert state_of(two, ConditionName.READY) == ("False", "BrokersNotReady")
    assert "exceeded quota" in found(two, ConditionName.READY).message


def test_the_status_of_etcd_comes_from_its_plan() -> None:
    """The status of etcd comes from its plan, and an unchanged condition keeps its transition time."""
    healthy = condition(ConditionName.ETCD_HEALTHY, "True", "Healthy", "", now=NOW)
    again = condition(ConditionName.ETCD_HEALTHY, "True", "Healthy", "", now=LATER)
    etcd = EtcdStatus(replicas=1, ready=1)
    first = after(facts(READY, etcd=etcd, etcd_condition=healthy))
    second = after(facts(first, etcd=etcd, etcd_condition=again, etcd_changes="a member joins"))

    assert found(second, ConditionName.ETCD_HEALTHY) == healthy
    assert second.etcd == etcd
    assert state_of(second, ConditionName.PROGRESSING) == ("True", "ChangingEtcd")


def test_a_paused_cluster_keeps_its_status() -> None:
    """A paused Cluster keeps its status and observed generation, and gets the condition `ReconciliationPaused`."""
    before = READY.model_copy(update={"observed_generation": 5})
    status = paused_status(cluster(before), LATER)

    assert state_of(status, ConditionName.RECONCILIATION_PAUSED) == ("True", "Annotation")
    assert status.observed_generation == 5
    assert types(status) == {"Ready", "Progressing", "Warning", "ReconciliationPaused"}


def test_a_cluster_that_cannot_be_read_says_so() -> None:
    """An unreadable Cluster gets the condition `InvalidSpec` and keeps its other status."""
    status = unreadable_status(READY, "Unreadable", "spec.brokers: required", now=LATER, generation=8)

    assert state_of(status, ConditionName.INVALID_SPEC) == ("True", "Unreadable")
    assert state_of(status, ConditionName.READY) == ("False", "InvalidSpec")
    assert status.observed_generation == 8
    assert status.cluster_id == "id-of-main"
