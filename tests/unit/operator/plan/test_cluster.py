"""The plan of a whole Cluster: its parts are planned independently, and no part blocks another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_status import ClusterStatus, ScaleDownStatus
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import condition
from fairlead_api.versions import FEATURE_LEVEL
from fairlead_operator.plan.actions import (
    AlterConfig,
    MarkPod,
    NoteAddress,
    Outcomes,
    ReplaceSet,
    ResizeClaim,
    RestartBroker,
    RestartReason,
    UnmarkCluster,
)
from fairlead_operator.plan.cluster import (
    ClusterPlan,
    Context,
    EtcdFacts,
    asks_for_metadata,
    cluster_facts,
    plan_cluster,
)
from fairlead_operator.plan.observed import Observed, ObservedPod, ObservedSet
from fairlead_operator.plan.roll import Wanted
from fairlead_operator.plan.status import cluster_status
from fairlead_operator.render.inputs import EtcdInputs, Images
from plan_kit import NOW, answer, claim, pod, stateful_set
from refusals import missing

CONTEXT = Context(images=Images(broker="fairlead:1", etcd="etcd:1"), etcd=EtcdInputs(replicas=1))


def cluster(replicas: int = 3, *, annotations: dict[str, str] | None = None, **said: Any) -> Cluster:
    """Return the Cluster `main` with pool `a`."""
    pool = {"name": "a", "replicas": replicas, "storage": {"size": said.pop("size", "10Gi")}}
    status = said.pop("status", ClusterStatus())
    etcd = said.pop("etcd", {"managed": {"replicas": 1}})
    return Cluster.parse(
        {
            "metadata": {"name": "main", "namespace": "shop", "annotations": annotations or {}},
            "spec": {"brokers": [pool], "etcd": etcd, **said},
            "status": status.manifest(),
        }
    )


def drawn(of: Cluster) -> Wanted:
    """Return the fingerprints that the pods of a Cluster should have."""
    return plan_cluster(of, Observed(now=NOW), CONTEXT).wanted["a"]


def running(of: Cluster, replicas: int = 3, **said: Any) -> Observed:
    """Return the observed state with the given number of running brokers, which match the Cluster and answer."""
    hashes: dict[str, Any] = {"pod_spec_hash": drawn(of).pod_spec_hash, "config_hash": drawn(of).config_hash}
    sets: tuple[ObservedSet, ...] = (stateful_set(replicas, **hashes),)
    pods: tuple[ObservedPod, ...] = tuple(pod(broker, **hashes) for broker in range(replicas))
    known: dict[str, Any] = {
        "pods": pods,
        "sets": sets,
        "etcd_set": stateful_set(1, name="main-etcd", pool="", storage_size="2Gi"),
        "claims": tuple(claim(broker) for broker in range(replicas)),
        "brokers": answer(range(replicas)),
    }
    return Observed(now=NOW, **{**known, **said})


def replicas_drawn(plan: ClusterPlan) -> dict[str, int]:
    """Return the number of replicas of each StatefulSet."""
    return {
        each["metadata"]["name"]: each["spec"]["replicas"]
        for each in plan.manifests
        if each["kind"] == "StatefulSet"
    }


def test_a_new_cluster_is_drawn_and_nothing_else_is_done() -> None:
    """A new Cluster gets its StatefulSets and no other action, and its brokers are called again after 10 s."""
    plan = plan_cluster(cluster(), Observed(now=NOW), CONTEXT)

    assert replicas_drawn(plan) == {"main-etcd": 1, "main-a": 3}
    assert plan.actions == ()
    assert plan.requeue_seconds == 10


def test_a_cluster_at_rest_asks_for_nothing() -> None:
    """A Cluster that matches its spec needs no action and no requeue."""
    plan = plan_cluster(cluster(), running(cluster()), CONTEXT)

    assert plan.actions == ()
    assert plan.requeue_seconds is None


def test_every_part_goes_on_beside_the_others() -> None:
    """The plan enlarges disks, changes configuration, adds a broker and continues a roll in the same step."""
    old = cluster()
    new = cluster(
        4,
        size="20Gi",
        image="fairlead:2",
        config={"num.partitions": "6", "nonsense": "1", "num.io.threads": "6"},
    )
    images = Context(images=Images(broker="fairlead:2", etcd="etcd:1"), etcd=EtcdInputs(replicas=1))
    wanted = plan_cluster(new, Observed(now=NOW), images).wanted["a"]
    hashes: dict[str, Any] = {"pod_spec_hash": wanted.pod_spec_hash, "config_hash": wanted.config_hash}
    ready = tuple(pod(broker, pod_spec_hash="old") for broker in range(3))
    seen = running(old, sets=(stateful_set(3, **hashes),), pods=(*ready, pod(3, ready=False, **hashes)))
    plan = plan_cluster(new, seen, images)

    assert replicas_drawn(plan)["main-a"] == 4
    assert plan.actions == (
        *(ResizeClaim(f"data-main-a-{broker}", "20Gi") for broker in range(3)),
        ReplaceSet("main-a", "uid-a"),
        AlterConfig({"num.partitions": "6"}),
    )
    assert set(plan.forbidden) == {"nonsense"}
    assert plan.roll.hindrance is not None
    assert missing(plan.roll.hindrance.message, 3) == []
    assert plan.requeue_seconds == 2


def test_a_restart_waits_until_the_set_has_the_newest_template() -> None:
    """No pod is restarted in the step that applies the new template, but the pending roll is reported."""
    old, new = cluster(), cluster(config={"num.io.threads": "6"})
    first = plan_cluster(new, running(old), CONTEXT)
    hashes: dict[str, Any] = {
        "pod_spec_hash": drawn(new).pod_spec_hash,
        "config_hash": drawn(new).config_hash,
    }
    then = plan_cluster(new, running(old, sets=(stateful_set(3, **hashes),)), CONTEXT)
    unseen = plan_cluster(new, running(old, sets=(stateful_set(3, settled=False, **hashes),)), CONTEXT)

    assert first.actions == ()
    assert set(first.roll.pending) == {0, 1, 2}
    assert unseen.actions == ()
    assert then.actions == (
        RestartBroker(0, "main-a-0", "uid-0", reasons=(RestartReason.CONFIG_CHANGED,), permit=True),
    )


def test_a_blocked_roll_of_silent_brokers_is_looked_at_less_often() -> None:
    """A blocked roll whose brokers do not answer is checked again only after 10 s."""
    old, new = cluster(), cluster(config={"num.io.threads": "6"})

    assert plan_cluster(new, running(old, brokers=None), CONTEXT).requeue_seconds == 10


def test_restarts_can_be_forbidden_by_annotation() -> None:
    """The annotation `no-restarts` suspends the roll, and all other changes are made."""
    old = cluster()
    new = cluster(config={"num.io.threads": "6"}, annotations={"fairlead.dev/no-restarts": "true"})
    plan = plan_cluster(new, running(old), CONTEXT)

    assert plan.roll.hindrance is not None
    assert plan.roll.hindrance.reason == "RestartsSuspended"
    assert plan.requeue_seconds is None


def test_an_order_to_restart_all_is_put_on_every_pod_first() -> None:
    """An order to restart all brokers is written to every pod first and removed from the Cluster afterwards."""
    asked = cluster(annotations={"fairlead.dev/restart": "weekly"})
    seen = running(asked)
    marked = (seen.pods[0], *(replace(each, restart_asked="weekly") for each in seen.pods[1:]))
    plan = plan_cluster(asked, running(asked, pods=marked), CONTEXT)

    assert plan.actions == (MarkPod("main-a-0", "weekly"), UnmarkCluster())


def test_fewer_brokers_are_remembered_in_the_status() -> None:
    """Brokers that leave are recorded in the status, and the plan requests metadata while the status lists them."""
    meant = ClusterStatus(scale_down=ScaleDownStatus(broker_id=4, broker_ids=(3, 4), partitions_left=0))
    fewer = cluster(3, status=meant)
    seen = running(fewer, 5, brokers=answer(range(5), topics={}))
    plan = plan_cluster(fewer, seen, CONTEXT)
    facts = cluster_facts(fewer, seen, plan, Outcomes(), EtcdFacts())

    assert asks_for_metadata(fewer, seen)
    assert replicas_drawn(plan)["main-a"] == 5
    assert [type(action).__name__ for action in plan.actions] == [
        "CordonBroker",
        "CordonBroker",
        "DrainBroker",
    ]
    assert cluster_status(facts).scale_down == meant.scale_down


def test_metadata_is_asked_for_where_a_disk_is_at_stake() -> None:
    """Metadata is requested only when a disk may be deleted or the roll waits for a broker that is behind."""
    of = cluster()
    blocked = condition(
        ConditionName.ROLL_BLOCKED, "True", "BrokersNotReady", "broker 1 is not ready", now=NOW
    )
    waiting = cluster(status=ClusterStatus(conditions=(blocked,)))
    wiped = (pod(0, new_disk_asked=True),)
    going = (claim(0, terminating=True),)

    assert not asks_for_metadata(of, running(of))
    assert asks_for_metadata(of, running(of, pods=wiped))
    assert asks_for_metadata(of, running(of, claims=going))
    assert asks_for_metadata(waiting, running(waiting))


@pytest.mark.parametrize("size", ["2Gi", "4Gi"])
def test_disks_of_etcd_grow_like_those_of_brokers(size: str) -> None:
    """Volumes of a managed etcd grow according to the same rules as broker volumes; an external etcd has no volumes."""
    of = cluster(etcd={"managed": {"replicas": 1, "storage": {"size": size}}})
    member = claim(0, name="data-main-etcd-0", pool="", requested="2Gi")
    seen = running(of, claims=(member,))
    plan = plan_cluster(of, seen, CONTEXT)
    external = cluster(etcd={"external": {"endpoints": ["http://etcd:2379"]}})
    outside = plan_cluster(external, Observed(now=NOW), Context(images=CONTEXT.images))

    grown = (ResizeClaim("data-main-etcd-0", "4Gi"), ReplaceSet("main-etcd", "uid-a"))
    assert plan.actions == (grown if size == "4Gi" else ())
    assert plan.requeue_seconds == (2 if size == "4Gi" else None)
    assert replicas_drawn(outside) == {"main-a": 3}


def test_an_external_address_lasts_while_its_load_balancer_is_recreated() -> None:
    """A broker keeps its load balancer's address, and does not restart, while the load balancer is recreated."""
    listener = {"type": "loadbalancer", "perBroker": True}
    of, internal = cluster(2, listeners={"data": listener}), cluster(2)
    told = (claim(0, announced_address="broker-0:9520"), claim(1))
    plan = plan_cluster(of, running(of, 2, claims=told), CONTEXT)
    file = next(each for each in plan.manifests if each["kind"] == "ConfigMap")["data"]["broker.yaml"]
    ended = plan_cluster(internal, running(internal, 2, claims=told), CONTEXT)

    assert plan.roll.pending == {}
    assert "'0': broker-0:9520" in file
    assert plan.outside is not None
    assert plan.outside.addresses[0] == "broker-0:9520"
    assert plan.addresses[0] == "main-a-0.main-brokers.shop.svc:9520"
    assert ended.roll.pending == {0: (RestartReason.ADDRESS_CHANGED,)}


def test_an_address_that_a_broker_learned_when_it_started_is_noted() -> None:
    """An address that a broker has advertised since its start is recorded in its volume claim."""
    of = cluster(2, listeners={"data": {"type": "loadbalancer", "perBroker": True}})
    services = tuple(
        {
            "metadata": {"name": f"main-broker-{broker}"},
            "status": {"loadBalancer": {"ingress": [{"hostname": host}]}},
        }
        for broker, host in enumerate(("broker-0", "other"))
    )
    first = running(of, 2, claims=(claim(0), claim(1)), services=services)
    noted = replace(first, claims=(claim(0, announced_address="broker-0:9520"), claim(1)))
    silent = replace(first, brokers=None)
    plans = [plan_cluster(of, seen, CONTEXT) for seen in (first, noted, silent)]
    notes = [[each for each in plan.actions if isinstance(each, NoteAddress)] for plan in plans]

    assert notes == [[NoteAddress("data-main-a-0", "broker-0:9520")], [], []]
    assert plans[0].roll.pending == {1: (RestartReason.ADDRESS_CHANGED,)}
    assert not any(isinstance(each, NoteAddress) for each in plan_cluster(cluster(2), first, CONTEXT).actions)


def test_the_address_of_a_load_balancer_that_is_not_asked_for_any_more_is_forgotten() -> None:
    """A restart drops the address of a load balancer when the listener no longer serves external clients."""
    of = cluster(2, listeners={"data": {"type": "internal", "perBroker": True}})
    told = (claim(0, announced_address="broker-0:9520"), claim(1))
    plan = plan_cluster(of, running(of, 2, claims=told), CONTEXT)
    file = next(each for each in plan.manifests if each["kind"] == "ConfigMap")["data"]["broker.yaml"]

    assert plan.roll.pending == {0: (RestartReason.ADDRESS_CHANGED,)}
    assert "advertise_each" not in file
    assert plan.addresses[0] == "main-a-0.main-brokers.shop.svc:9520"


def test_an_address_at_nodes_lasts_while_its_port_is_not_known() -> None:
    """A broker keeps advertising its node port address while the port of its Service is unknown."""
    listener = {"type": "nodeport", "perBroker": True, "advertisedHost": "broker-{id}"}
    of = cluster(2, listeners={"data": listener})
    told = (claim(0, announced_address="broker-0:30520"), claim(1))
    plan = plan_cluster(of, running(of, 2, claims=told), CONTEXT)

    assert plan.outside is not None
    assert plan.outside.addresses[0] == "broker-0:30520"


def test_clients_outside_get_the_nodes_of_the_brokers() -> None:
    """Brokers read their node port with a placeholder for their node, which brokers of older releases do not know."""
    of = cluster(2, listeners={"data": {"type": "nodeport", "perBroker": True}})
    services = tuple(
        {"metadata": {"name": f"main-{name}"}, "spec": {"ports": [{"nodePort": port}]}}
        for name, port in (("external", 30520), ("broker-0", 30000), ("broker-1", 30001))
    )
    first, second = running(of, 2).pods
    pods = (replace(first, node_address="10.0.0.1"), second)
    brokers = answer(range(2))
    listening = replace(
        brokers,
        brokers={
            broker: msgspec.structs.replace(each, external_address=f"http://10.0.0.1:3000{broker}")
            for broker, each in brokers.brokers.items()
        },
    )
    older = plan_cluster(of, running(of, 2, pods=pods, services=services, brokers=brokers), CONTEXT)
    seen = running(of, 2, pods=pods, services=services, brokers=listening, claims=(claim(0), claim(1)))
    plan = plan_cluster(of, seen, CONTEXT)
    [file, old_file] = [
        next(each for each in found.manifests if each["kind"] == "ConfigMap")["data"]["broker.yaml"]
        for found in (plan, older)
    ]

    assert plan.outside is not None
    assert plan.outside.addresses == {0: "10.0.0.1:30000"}
    assert plan.outside.bootstrap == "http://10.0.0.1:30520"
    assert plan.outside.deaf == frozenset()
    assert "'0': '{node}:30000'" in file
    assert "{node}" not in old_file
    assert older.outside is not None
    assert older.outside.deaf == {0, 1}
    assert plan.roll.pending == {}
    assert [each for each in plan.actions if isinstance(each, NoteAddress)] == [
        NoteAddress("data-main-a-0", "10.0.0.1:30000")
    ]


def test_a_format_is_raised_after_the_roll_of_the_brokers() -> None:
    """A requested format becomes the feature level only when every broker runs the newest template."""
    wanted = cluster(formatVersion=2)
    at_rest = plan_cluster(wanted, running(wanted), CONTEXT)
    unknown = plan_cluster(cluster(formatVersion=FEATURE_LEVEL + 1), running(wanted), CONTEXT)
    absent = plan_cluster(wanted, running(wanted, brokers=answer(range(2))), CONTEXT)
    old = tuple(pod(broker, pod_spec_hash="old") for broker in range(3))
    rolling = plan_cluster(wanted, running(wanted, pods=old), CONTEXT)
    raised = AlterConfig({"feature.level": 2})

    assert at_rest.actions == (raised,)
    assert [raised in plan.actions for plan in (absent, rolling)] == [False] * 2
    assert unknown.actions == ()


def test_clients_with_tls_have_addresses_of_their_own() -> None:
    """While a Cluster serves both transports, its status has a second listener for clients with TLS."""
    of = cluster(2, security={"tls": {"mode": "Both"}})
    observed = running(of, 2)
    plan = plan_cluster(of, observed, CONTEXT)
    status = cluster_status(cluster_facts(of, observed, plan, Outcomes(), EtcdFacts()))

    assert [(each.name, (each.bootstrap or "").partition(":")[0]) for each in status.listeners] == [
        ("data", "http"),
        ("data-tls", "https"),
    ]
