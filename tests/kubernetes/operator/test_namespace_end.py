"""A deleted namespace is removed, even though the operator's rights, and perhaps the operator, are deleted with it.

Brokers do not answer here, so only the deletion of the namespace releases a Topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cluster_words import a_cluster, is_done
from images import PAUSE_IMAGE
from topic_stage import ready_reason

if TYPE_CHECKING:
    from kube_client import Manifest
    from kubernetes_under_test import Kubernetes
    from operator_process import Operators

GONE_SECONDS = 120.0
"""Time limit for a removal: Kubernetes checks a namespace again after half the grace period of its pods."""
QUICK: Any = {"template": {"spec": {"terminationGracePeriodSeconds": 10}}}


def a_topic(name: str, **reference: str) -> Manifest:
    """Return a Topic of the Cluster `main` whose topic is deleted with it."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "main", **reference}},
    }


def held(topic: Manifest | None) -> bool:
    """Return whether the operator has processed a Topic and its finalizer is set."""
    return ready_reason(topic) == "ClusterNotReady" and "finalizers" in (topic or {})["metadata"]


def is_let_go(topic: Manifest | None) -> bool:
    """Return whether a Topic exists without the operator's finalizer."""
    return topic is not None and "finalizers" not in topic["metadata"]


@pytest.mark.scenario
@pytest.mark.parametrize("paused", ["false", "true"])
def test_a_namespace_goes_with_the_roles_in_it(
    kubernetes: Kubernetes, operators: Operators, namespace: str, paused: str
) -> None:
    """A namespace with a Cluster, Topics and the operator's roles can be deleted, even while the Cluster is paused."""
    api = kubernetes.api
    operator = operators.start(namespace)
    api.apply(a_cluster(2, pool=QUICK), namespace)
    for name in ("one", "two"):
        api.apply(a_topic(name), namespace)
    api.wait("clusters.fairlead.dev/main", namespace, is_done)
    for name in ("one", "two"):
        api.wait(f"topics.fairlead.dev/{name}", namespace, held)
    api.annotate("clusters.fairlead.dev/main", namespace, {"fairlead.dev/paused": paused})
    mark = kubernetes.audit_mark()
    api.delete(f"namespace/{namespace}")
    free = [api.wait(f"topics.fairlead.dev/{name}", namespace, is_let_go) for name in ("one", "two")]
    api.wait(f"namespace/{namespace}", None, lambda each: each is None, GONE_SECONDS)
    freed = [
        each.code
        for each in kubernetes.audit(since=mark, user=operator.user)
        if (each.verb, each.resource) == ("patch", "topics")
    ]

    assert not any("deletionTimestamp" in each["metadata"] for each in free), (
        "while there are rights to do it"
    )
    assert freed == [200, 200], "each is let go once"


@pytest.mark.scenario
def test_a_listed_namespace_goes_with_topics_of_a_cluster_elsewhere(
    kubernetes: Kubernetes, operators: Operators, namespace: str
) -> None:
    """A namespace without pods is removed with its Topics, which the operator releases before it loses its rights."""
    api, home = kubernetes.api, kubernetes.namespace()
    operator = operators.start(home, scope="list", watch=[home, namespace])
    api.apply(a_cluster(1, topicNamespaces=[namespace]), home)
    api.apply(a_topic("orders", namespace=home), namespace)
    api.wait("topics.fairlead.dev/orders", namespace, held)
    api.delete(f"namespace/{namespace}")
    api.wait(f"namespace/{namespace}", None, lambda each: each is None, GONE_SECONDS)

    code = operator.stop()
    binding = api.get(f"rolebinding/{home}-fairlead-operator-listed", home)

    assert code == 0
    assert binding is not None
    assert not binding["metadata"].get("finalizers")


@pytest.mark.scenario
def test_a_namespace_goes_with_the_operator_in_it(
    kubernetes: Kubernetes, operators: Operators, namespace: str
) -> None:
    """An operator that is deleted with its namespace releases the objects that no other operator manages."""
    api, elsewhere = kubernetes.api, kubernetes.namespace()
    operator = operators.start(namespace, scope="list", watch=[namespace, elsewhere])
    api.apply(a_cluster(1, topicNamespaces=[namespace]), elsewhere)
    api.apply(a_topic("orders", namespace=elsewhere), namespace)
    api.apply(a_topic("local"), elsewhere)
    api.wait("topics.fairlead.dev/orders", namespace, held)
    api.wait("topics.fairlead.dev/local", elsewhere, held)
    api.create(a_pod(), namespace)
    api.wait("pod/operator", namespace, lambda each: each and each["status"].get("phase") == "Running")
    api.delete(f"namespace/{namespace}")
    code = operator.stop()
    api.wait(f"namespace/{namespace}", None, lambda each: each is None, GONE_SECONDS)
    kept = api.get("topics.fairlead.dev/local", elsewhere)

    assert code == 0
    assert operator.count("resources released") == 1
    assert held(kept), "its namespace stays"


def a_pod() -> Manifest:
    """Return a pod that stands in for the operator's, with a termination grace period."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "operator"},
        "spec": {
            "terminationGracePeriodSeconds": 10,
            "containers": [{"name": "operator", "image": PAUSE_IMAGE, "securityContext": restricted}],
        },
    }
