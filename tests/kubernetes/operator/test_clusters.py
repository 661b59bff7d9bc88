"""Clusters on a real API server, with its controllers and fake pods without brokers.

Tests that need answers from brokers are in `test_cluster_brokers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_words import BROKERS, a_cluster, condition_of, has, is_done, uids
from operator_process import SharedOperator, shared_operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_client import KubeClient, Manifest
    from kubernetes_under_test import Kubernetes

HOLD = {"metadata": {"annotations": {"fairlead.test/hold": "true"}}}
"""Fields of a pool whose pods must stay Pending."""
CLUSTER = "clusters.fairlead.dev/main"
FIRST_KAFKA_PORT = 31920


@pytest.fixture(scope="module")
def operator(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedOperator]:
    """Yield an operator that watches several namespaces, one for each test and one for a shared Cluster."""
    with shared_operator(kubernetes, tmp_path_factory.mktemp("operator"), namespaces=10) as running:
        yield running


@pytest.fixture(scope="module")
def ready(kubernetes: Kubernetes, operator: SharedOperator) -> str:
    """Return the namespace of a ready Cluster of three brokers, which every test leaves ready."""
    namespace = operator.namespace()
    kubernetes.api.apply(a_cluster(), namespace)
    kubernetes.api.wait(CLUSTER, namespace, is_done)
    return namespace


@pytest.fixture
def namespace(operator: SharedOperator) -> str:
    """Return a namespace of the operator for one test."""
    return operator.namespace()


def make_stuck(api: KubeClient, namespace: str, pod: Manifest) -> None:
    """Set the status of a pending pod to that of a pod whose image cannot be pulled."""
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    status = {
        "name": "broker",
        "image": "wrong",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }
    api.patch(
        f"pod/{pod['metadata']['name']}",
        namespace,
        {"status": {"containerStatuses": [status]}},
        subresource="status",
    )


def test_a_cluster_becomes_ready_and_then_nothing_is_written(
    kubernetes: Kubernetes, operator: SharedOperator, ready: str
) -> None:
    """A Cluster gets its objects and a status with all brokers, and further passes write nothing."""
    api = kubernetes.api
    cluster = api.wait(CLUSTER, ready, is_done)
    api.wait(
        "persistentvolumeclaim/data-main-a-2",
        ready,
        lambda each: each and each["status"]["phase"] == "Bound",
    )
    mark = kubernetes.audit_mark()
    # A change of an annotation that the operator does not use starts a pass. The Service that the operator creates
    # again shows that the pass has run.
    api.annotate(CLUSTER, ready, {"example.com/note": "look"})
    api.annotate("service/main-bootstrap", ready, {"example.com/note": "stays"})
    service = api.get("service/main-bootstrap", ready)
    api.delete("service/main-bootstrap", ready)
    api.wait(
        "service/main-bootstrap",
        ready,
        lambda each: each and service and each["metadata"]["uid"] != service["metadata"]["uid"],
    )

    status = cluster["status"]
    assert status["brokers"] == {"desired": 3, "ready": 3, "summary": "3/3"}
    assert status["pools"] == [{"name": "a", "replicas": 3, "ready": 3, "updated": 3, "brokerIds": [0, 1, 2]}]
    assert status["listeners"][0]["bootstrap"] == f"http://main-bootstrap.{ready}.svc:9520"
    assert condition_of(cluster, "Warning")["reason"] == "BrokersUnreachable"
    assert [event.resource for event in operator.writes(ready, mark, at_least=1)] == ["services"]


def test_children_are_kept_as_drawn(kubernetes: Kubernetes, ready: str) -> None:
    """Changed fields of the operator's objects are restored, added fields stay, and unwanted objects are deleted."""
    api = kubernetes.api
    api.patch(
        "poddisruptionbudget/main-brokers",
        ready,
        {"metadata": {"labels": {"example.com/team": "blue"}}, "spec": {"maxUnavailable": 2}},
    )
    repaired = api.wait(
        "poddisruptionbudget/main-brokers",
        ready,
        lambda each: each and each["spec"]["maxUnavailable"] == 1,
    )
    api.patch(CLUSTER, ready, {"spec": {"networkPolicy": {"enabled": False}}})
    api.wait("networkpolicy/main-brokers", ready, lambda each: each is None)
    api.wait(CLUSTER, ready, is_done)

    assert repaired["metadata"]["labels"]["example.com/team"] == "blue"


def test_a_console_is_created_and_deleted(kubernetes: Kubernetes, ready: str) -> None:
    """A console runs a ready pod behind a Service; without `spec.console`, all of its objects are deleted."""
    api = kubernetes.api
    route = {"kind": "Ingress", "host": "console.example.com"}
    spec = {"console": {"readOnly": True, "route": route}, "networkPolicy": {"enabled": True}}
    api.patch(CLUSTER, ready, {"spec": spec})
    deployment = api.wait(
        "deployment/main-console",
        ready,
        lambda each: each and each.get("status", {}).get("readyReplicas") == 1,
    )
    objects = (
        "deployment/main-console",
        "service/main-console",
        "networkpolicy/main-console",
        "ingress/main-console",
    )
    generation = deployment["metadata"]["generation"]
    for each in objects:
        api.wait(each, ready, bool)
    api.patch(CLUSTER, ready, {"spec": {"console": None}})
    for each in objects:
        api.wait(each, ready, lambda found: found is None)
    cluster = api.wait(CLUSTER, ready, is_done)

    assert generation == 1
    assert cluster["status"]["brokers"]["ready"] == 3


def test_each_broker_has_a_node_port_for_kafkas_clients(kubernetes: Kubernetes, namespace: str) -> None:
    """Each broker's node port leads to its pod, and a port that another Service has is reported until it is free."""
    api = kubernetes.api
    port = {"port": 80, "nodePort": FIRST_KAFKA_PORT + 2}
    other: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "other"},
        "spec": {"type": "NodePort", "ports": [port]},
    }
    api.apply(other, namespace)
    kafka = {"enabled": True, "type": "nodeport", "firstNodePort": FIRST_KAFKA_PORT}
    api.apply(a_cluster(listeners={"kafka": kafka}), namespace)
    told = api.wait(
        CLUSTER, namespace, lambda each: "main-kafka-2" in condition_of(each, "Warning").get("message", "")
    )
    api.delete("service/other", namespace)
    cluster = api.wait(
        CLUSTER,
        namespace,
        lambda each: is_done(each) and "main-kafka-2" not in condition_of(each, "Warning").get("message", ""),
    )
    ports, backends = [], []
    for broker in range(3):
        service = api.get(f"service/main-kafka-{broker}", namespace)
        assert service is not None, "each broker has a Service"
        ports += [each["nodePort"] for each in service["spec"]["ports"]]
        [slice_] = api.wait_list(
            "endpointslices.discovery.k8s.io",
            namespace,
            lambda found: any(each["endpoints"] for each in found),
            selector=f"kubernetes.io/service-name=main-kafka-{broker}",
        )
        backends += [each["targetRef"]["name"] for each in slice_["endpoints"]]
    nodes = {pod["metadata"]["name"]: pod["status"]["hostIP"] for pod in api.list("pods", namespace, BROKERS)}
    listener = next(each for each in cluster["status"]["listeners"] if each["name"] == "kafka")

    assert str(FIRST_KAFKA_PORT + 2) in condition_of(told, "Warning")["message"]
    assert ports == [FIRST_KAFKA_PORT + broker for broker in range(3)]
    assert backends == [f"main-a-{broker}" for broker in range(3)]
    assert [each["address"] for each in listener["brokers"]] == [
        f"{nodes[f'main-a-{broker}']}:{FIRST_KAFKA_PORT + broker}" for broker in range(3)
    ]


@pytest.mark.scenario
def test_a_paused_cluster_is_left_alone(
    kubernetes: Kubernetes, operator: SharedOperator, ready: str, namespace: str
) -> None:
    """The new spec of a paused Cluster is applied, and its drift corrected, only when the pause ends.

    While one Cluster is paused, another Cluster gets the addresses of its load balancers in its status and in the file
    that its brokers read, which also shows that the operator had time to act.
    """
    api = kubernetes.api
    api.annotate(CLUSTER, ready, {"fairlead.dev/paused": "true"})
    paused = api.wait(CLUSTER, ready, has("ReconciliationPaused", "Annotation"))
    mark = kubernetes.audit_mark()
    api.delete("service/main-bootstrap", ready)
    api.patch(CLUSTER, ready, {"spec": {"config": {"retention.ms": "60000"}}})
    told, file = balanced(api, namespace)
    written = {event.name for event in operator.writes(ready, mark) if event.resource != "clusters/status"}
    still = api.get(CLUSTER, ready)
    api.annotate(CLUSTER, ready, {"fairlead.dev/paused": None})
    api.wait("service/main-bootstrap", ready, lambda each: each)
    resumed = api.wait(CLUSTER, ready, is_done)

    assert told["status"]["listeners"] == [
        {
            "name": "data",
            "type": "internal",
            "bootstrap": f"http://main-bootstrap.{namespace}.svc:9520",
            "brokers": [{"id": 0, "address": f"main-a-0.main-brokers.{namespace}.svc:9520"}],
        },
        {
            "name": "external",
            "type": "loadbalancer",
            "bootstrap": "http://198.51.100.1:9520",
            "brokers": [{"id": 0, "address": "198.51.100.2:9520"}],
        },
    ]
    assert "advertise_each" in file["data"]["broker.yaml"]
    assert still is not None
    assert still["status"]["observedGeneration"] == paused["metadata"]["generation"]
    assert [name for name in written if name.startswith("main")] == []
    assert condition_of(resumed, "ReconciliationPaused") == {}


def balanced(api: KubeClient, namespace: str) -> tuple[Manifest, Manifest]:
    """Create a Cluster with load balancers and give them addresses.

    Return the Cluster, and the configuration of its brokers, once they contain the addresses.
    """
    api.apply(a_cluster(1, listeners={"data": {"type": "loadbalancer", "perBroker": True}}), namespace)
    for name, host in (("main-external", "198.51.100.1"), ("main-broker-0", "198.51.100.2")):
        api.wait(f"service/{name}", namespace, lambda each: each)
        given = {"status": {"loadBalancer": {"ingress": [{"ip": host}]}}}
        api.patch(f"service/{name}", namespace, given, subresource="status")
    told = api.wait(
        CLUSTER,
        namespace,
        lambda each: "198.51.100.2" in str((each or {}).get("status", {}).get("listeners")),
    )
    file = api.wait(
        "configmap/main-config",
        namespace,
        lambda each: each and "198.51.100.2:9520" in each["data"]["broker.yaml"],
    )
    return told, file


@pytest.mark.parametrize("policy", [pytest.param("Retain", marks=pytest.mark.scenario), "Delete"])
def test_disks_grow_without_a_restart(kubernetes: Kubernetes, namespace: str, policy: str) -> None:
    """Disks grow without a restart: claims are enlarged and the StatefulSet is created again around its pods.

    A claim that was enlarged by hand is accepted. No claim is deleted with the old StatefulSet, even when claims are
    deleted with the Cluster.
    """
    api = kubernetes.api
    fate = {"whenDeleted": policy, "whenScaled": policy}
    api.apply(a_cluster(2, claimPolicy=fate), namespace)
    api.wait(CLUSTER, namespace, is_done)
    disks = uids(api.list("persistentvolumeclaims", namespace, BROKERS))
    pods, old = uids(api.list("pods", namespace, BROKERS)), api.get("statefulset/main-a", namespace)
    api.wait(
        "persistentvolumeclaim/data-main-a-1", namespace, lambda each: each and each["status"].get("capacity")
    )
    larger = {"spec": {"resources": {"requests": {"storage": "3Gi"}}}}
    api.patch("persistentvolumeclaim/data-main-a-1", namespace, larger)
    api.apply(a_cluster(2, size="2Gi", claimPolicy=fate), namespace)
    api.wait_list(
        "persistentvolumeclaims",
        namespace,
        lambda claims: (
            sorted(each["status"].get("capacity", {}).get("storage", "") for each in claims) == ["2Gi", "3Gi"]
        ),
        selector=BROKERS,
    )
    new = api.wait(
        "statefulset/main-a",
        namespace,
        lambda each: each and old and each["metadata"]["uid"] != old["metadata"]["uid"],
    )
    api.wait(CLUSTER, namespace, is_done)

    assert new["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert uids(api.list("pods", namespace, BROKERS)) == pods
    left = api.list("persistentvolumeclaims", namespace, BROKERS)
    assert uids(left) == disks
    assert not [each for each in left if "deletionTimestamp" in each["metadata"]]


@pytest.mark.scenario
def test_disks_that_cannot_grow_stop_nothing_else(kubernetes: Kubernetes, namespace: str) -> None:
    """A disk that cannot grow is reported, the Cluster stays ready, and a new broker gets the larger disk."""
    api = kubernetes.api
    fixed = {"storage": {"size": "1Gi", "storageClassName": "fixed"}}
    api.apply(a_cluster(1, pool=fixed), namespace)
    api.wait(CLUSTER, namespace, is_done)
    api.apply(a_cluster(2, pool={"storage": {"size": "2Gi", "storageClassName": "fixed"}}), namespace)
    told = api.wait(CLUSTER, namespace, has("StorageBlocked", "ExpansionNotAllowed"))
    claim = api.wait("persistentvolumeclaim/data-main-a-1", namespace, lambda each: each)

    assert condition_of(told, "Ready")["status"] == "True"
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"


@pytest.mark.scenario
def test_stuck_pods_are_replaced_when_the_spec_is_repaired(kubernetes: Kubernetes, namespace: str) -> None:
    """Pods that cannot start are reported, and a new template replaces them at once, without asking the brokers."""
    api = kubernetes.api
    api.apply(a_cluster(pool={"template": HOLD}, image="example.com/wrong:1"), namespace)
    pods = api.wait_list("pods", namespace, lambda found: len(found) == 3, selector=BROKERS)
    for pod in pods:
        make_stuck(api, namespace, pod)
    told = api.wait(CLUSTER, namespace, has("Warning", "PodFailing"))
    api.patch(CLUSTER, namespace, {"spec": {"brokers": a_cluster()["spec"]["brokers"]}})
    api.wait(CLUSTER, namespace, is_done)

    assert "ImagePullBackOff: no such image" in condition_of(told, "Warning")["message"]
    assert condition_of(told, "Ready")["status"] == "False"
    replaced = uids(api.list("pods", namespace, BROKERS))
    assert not set(replaced.values()) & set(uids(pods).values())


@pytest.mark.scenario
def test_refused_pods_are_reported_with_the_message_of_the_api_server(
    kubernetes: Kubernetes, namespace: str
) -> None:
    """Pods that a quota refuses are reported with the API server's message until the quota has room."""
    api = kubernetes.api
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "2"}},
    }
    api.apply(quota, namespace)
    api.wait("resourcequota/small", namespace, lambda each: each and each.get("status", {}).get("hard"))
    api.apply(a_cluster(), namespace)
    told = api.wait(CLUSTER, namespace, has("Ready", "PodsRefused", "False"))
    api.apply({**quota, "spec": {"hard": {"pods": "20"}}}, namespace)
    done = api.wait(CLUSTER, namespace, is_done)

    assert "exceeded quota: small" in condition_of(told, "Ready")["message"]
    assert condition_of(done, "Warning")["reason"] == "BrokersUnreachable"


@pytest.mark.scenario
def test_ready_brokers_that_do_not_answer_are_not_restarted(kubernetes: Kubernetes, namespace: str) -> None:
    """Brokers that are ready and do not answer are not restarted, and new brokers are created anyway."""
    api = kubernetes.api
    api.apply(a_cluster(2), namespace)
    api.wait(CLUSTER, namespace, is_done)
    pods = uids(api.list("pods", namespace, BROKERS))
    api.apply(a_cluster(3, image="example.com/fairlead:2"), namespace)
    told = api.wait(CLUSTER, namespace, has("RollBlocked", "BrokersUnreachable"))
    api.wait("pod/main-a-2", namespace, lambda each: each)
    broken = {"template": {"spec": {"containers": [{"name": "broker", "imagePullPolicy": "Perhaps"}]}}}
    api.apply(a_cluster(3, pool=broken), namespace)
    api.wait(
        CLUSTER,
        namespace,
        lambda each: "imagePullPolicy" in condition_of(each, "Warning").get("message", ""),
    )

    assert condition_of(told, "Ready")["status"] == "True"
    assert pods.items() <= uids(api.list("pods", namespace, BROKERS)).items()


def test_a_deleted_cluster_leaves_its_disks(kubernetes: Kubernetes, namespace: str) -> None:
    """The objects of a deleted Cluster are removed, or are retained and adopted by the next Cluster.

    A Cluster is removed even while paused; the policy `claimPolicy` keeps or deletes the claims.
    """
    api, kinds = kubernetes.api, ("statefulsets", "services", "configmaps", "poddisruptionbudgets")
    api.apply(a_cluster(2), namespace)
    api.wait(CLUSTER, namespace, is_done)
    pods = {each["metadata"]["uid"] for each in api.list("pods", namespace, BROKERS)}
    api.patch(CLUSTER, namespace, {"spec": {"deletionPolicy": "Retain"}})
    for kind in kinds:
        api.wait_list(
            kind,
            namespace,
            lambda found: found and not any("ownerReferences" in each["metadata"] for each in found),
            selector="fairlead.dev/cluster=main",
        )
    api.delete(CLUSTER, namespace, propagation="Foreground")
    api.wait(CLUSTER, namespace, lambda each: each is None)
    api.apply(a_cluster(2), namespace)
    cluster = api.wait(CLUSTER, namespace, is_done)
    adopted = api.wait(
        "statefulset/main-a", namespace, lambda each: each and "ownerReferences" in each["metadata"]
    )
    still = {each["metadata"]["uid"] for each in api.list("pods", namespace, BROKERS)}
    api.annotate(CLUSTER, namespace, {"fairlead.dev/paused": "true"})
    api.delete(CLUSTER, namespace, propagation="Foreground")
    api.wait(CLUSTER, namespace, lambda each: each is None)
    api.wait_list("pods", namespace, lambda found: not found, selector="fairlead.dev/cluster=main")

    assert adopted["metadata"]["ownerReferences"][0]["uid"] == cluster["metadata"]["uid"]
    assert still == pods
    assert api.list("statefulsets", namespace) == []
    assert len(api.list("persistentvolumeclaims", namespace, BROKERS)) == 2
