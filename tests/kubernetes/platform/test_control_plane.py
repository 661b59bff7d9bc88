"""The control plane of the tests is real: it validates objects, schedules pods, and refuses invalid requests.

The audit log contains the user of each request.
"""

from __future__ import annotations

import pytest

from kube_client import KubeClient, Manifest, Refused
from kubernetes_under_test import Kubernetes
from refusals import raises

pytestmark = pytest.mark.scenario
GADGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.test}
spec:
  group: example.test
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, shortNames: [gdt]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {size: {type: integer}}
            x-kubernetes-validations:
            - {rule: "self.size >= oldSelf.size", message: "a gadget never shrinks"}
"""
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def gadget(size: int) -> Manifest:
    """Return an object of a kind that the test defines."""
    return {
        "apiVersion": "example.test/v1",
        "kind": "Gadget",
        "metadata": {"name": "one"},
        "spec": {"size": size},
    }


def a_pod() -> Manifest:
    """Return a pod for fake nodes, without a name."""
    container = {"name": "store", "image": "localhost/any", "securityContext": RESTRICTED}
    spec = {"nodeSelector": {"type": "fake"}, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}


def stateful_set(replicas: int, *, claim: str | None = None) -> Manifest:
    """Return a StatefulSet for fake nodes, one pod per zone, optionally with claims of a storage class."""
    labels = {"app": "store"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    claims = [
        {
            "metadata": {"name": "data"},
            "spec": {
                "storageClassName": claim,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
    ]
    pod = {**a_pod()["spec"], "topologySpreadConstraints": [spread]}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "store"},
        "spec": {
            "replicas": replicas,
            "serviceName": "store",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": claims if claim else [],
        },
    }


def is_running(pod: Manifest | None) -> bool:
    """Return whether a pod's containers run."""
    return pod is not None and pod["status"].get("phase") == "Running"


def ready_replicas(found: Manifest | None) -> int:
    """Return how many pods of a StatefulSet are Ready."""
    return int(found["status"].get("readyReplicas", 0)) if found else 0


def test_rules_of_a_defined_kind_hold(kubernetes: Kubernetes, namespace: str) -> None:
    """An object of a newly defined kind is stored, and a change that violates its rule is refused."""
    kubernetes.api.apply(GADGETS)
    kubernetes.api.apply(gadget(2), namespace)

    with raises(Refused, "gadget") as refused:
        kubernetes.api.apply(gadget(1), namespace)

    assert refused.value.status == 422
    assert kubernetes.api.list("gdt", namespace)[0]["spec"] == {"size": 2}


def test_restricted_pod_security(kubernetes: Kubernetes, namespace: str) -> None:
    """A pod that could run as root is refused."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loose"},
        "spec": {"containers": [{"name": "any", "image": "localhost/any"}]},
    }

    with raises(Refused, "PodSecurity") as refused:
        kubernetes.api.create(pod, namespace)

    assert refused.value.status == 403


def test_pods_of_fake_nodes(kubernetes: Kubernetes, namespace: str) -> None:
    """Pods with claims become Ready in three zones, and their claims grow if the class allows it."""
    api = kubernetes.api
    api.apply(stateful_set(3, claim="hostpath"), namespace)
    api.wait("statefulset/store", namespace, lambda found: ready_replicas(found) == 3)
    api.patch("pvc/data-store-0", namespace, {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})

    def grown(claim: Manifest | None) -> bool:
        return claim is not None and claim["status"]["capacity"]["storage"] == "2Gi"

    api.wait("pvc/data-store-0", namespace, grown)
    nodes = {pod["spec"]["nodeName"] for pod in api.list("pod", namespace)}

    assert nodes == {"fake-1", "fake-2", "fake-3"}


def test_scripted_readiness(kubernetes: Kubernetes, namespace: str) -> None:
    """A pod that is scripted to be unready stays unready until the script changes."""
    api = kubernetes.api
    api.apply(stateful_set(1), namespace)
    api.wait("statefulset/store", namespace, lambda found: ready_replicas(found) == 1)

    api.annotate("pod/store-0", namespace, {"fairlead.test/unready": "true"})
    unready = api.wait("statefulset/store", namespace, lambda found: ready_replicas(found) == 0)
    api.annotate("pod/store-0", namespace, {"fairlead.test/unready": None})
    ready = api.wait("statefulset/store", namespace, lambda found: ready_replicas(found) == 1)

    assert unready["status"]["replicas"] == ready["status"]["replicas"] == 1


def test_pods_of_fake_nodes_are_removed_once(kubernetes: Kubernetes, namespace: str) -> None:
    """A pod of a fake node is removed only once despite later changes, so that the next pod with its name stays."""
    api = kubernetes.api
    mark = kubernetes.audit_mark()
    # The finalizer keeps the pod until the API server's own change, which starts the removal, is delivered.
    kept = {"name": "kept", "finalizers": ["fairlead.test/kept"]}
    api.create({**a_pod(), "metadata": kept}, namespace)
    api.wait("pod/kept", namespace, is_running)
    api.delete("pod/kept", namespace)
    api.wait(
        "pod/kept", namespace, lambda found: found and found["metadata"]["deletionGracePeriodSeconds"] == 0
    )
    api.annotate("pod/kept", namespace, {"fairlead.test/changed": "true"})
    # Changes are delivered in order: when this pod runs, the node has received the earlier changes.
    api.create({**a_pod(), "metadata": {"name": "later"}}, namespace)
    api.wait("pod/later", namespace, is_running)
    api.patch("pod/kept", namespace, {"metadata": {"finalizers": None}})
    api.wait("pod/kept", namespace, lambda found: found is None)

    removals = [
        (event.name, event.code)
        for event in kubernetes.audit(since=mark, user="kwok", namespace=namespace, writes=True)
        if event.verb == "delete"
    ]

    assert removals == [("kept", 200)]


def test_eviction_against_a_budget(kubernetes: Kubernetes, namespace: str) -> None:
    """A pod cannot be evicted while a budget requires it."""
    api = kubernetes.api
    api.apply(stateful_set(2), namespace)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "store"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "store"}}},
    }
    api.apply(budget, namespace)
    api.wait("pdb/store", namespace, lambda found: found and found["status"].get("currentHealthy") == 2)

    with raises(Refused, "budget") as refused:
        api.evict("store-0", namespace)
    api.patch("pdb/store", namespace, {"spec": {"minAvailable": 1}})
    api.wait("pdb/store", namespace, lambda found: found and found["status"]["disruptionsAllowed"] == 1)
    api.evict("store-0", namespace)

    assert refused.value.status == 429


def test_the_audit_log_names_the_writer_of_each_object(kubernetes: Kubernetes, namespace: str) -> None:
    """A refused request from a service account is in the audit log under its name, and is not listed as a write."""
    mark = kubernetes.audit_mark()
    client = KubeClient(kubernetes.account_kubeconfig("default", namespace))
    user = f"system:serviceaccount:{namespace}:default"

    with pytest.raises(Refused) as refused:
        client.list("configmap", namespace)
    events = [event for event in kubernetes.audit(since=mark, user=user) if event.resource]

    assert refused.value.status == 403
    assert [(event.verb, event.resource, event.code) for event in events] == [("list", "configmaps", 403)]
    assert kubernetes.audit(since=mark, user=user, writes=True) == []


def test_kubectl_in_the_box(kubernetes: Kubernetes, namespace: str) -> None:
    """A program in the network of the box reaches the API server with the kubeconfig that programs outside use."""
    kubernetes.kubectl("create", "configmap", "note", "--from-literal=text=hello", "--namespace", namespace)

    found = kubernetes.api.get("configmap/note", namespace)

    assert found is not None
    assert found["data"] == {"text": "hello"}
