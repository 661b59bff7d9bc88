"""A door, which is a proxy for the API server, fails on request, and only for its own clients."""

from __future__ import annotations

import pytest
import urllib3

from doors import Door
from kube_client import KubeClient, Refused
from kubernetes_under_test import Kubernetes
from refusals import raises

pytestmark = pytest.mark.scenario
NOTE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}}


@pytest.fixture
def client(kubernetes: Kubernetes, door: Door, namespace: str) -> KubeClient:
    """Return a client with a token that uses the door and may write in its namespace."""
    grant = ["--clusterrole=edit", f"--serviceaccount={namespace}:default", "--namespace", namespace]
    kubernetes.kubectl("create", "rolebinding", "edit", *grant)
    return KubeClient(kubernetes.account_kubeconfig("default", namespace, server=door.server))


def test_a_door_answers_errors_as_often_as_ordered(
    kubernetes: Kubernetes, door: Door, client: KubeClient, namespace: str
) -> None:
    """A door answers two writes with 409 even though it executes the second write, and does not affect reads."""
    door.answer(409, times=1, methods=["POST"], path="/configmaps")
    door.answer(409, times=1, methods=["POST"], path="/configmaps", after=True)

    for _ in range(2):
        assert client.get("configmap/note", namespace) is None
        with raises(Refused, 409):
            client.create(NOTE, namespace)

    assert kubernetes.api.get("configmap/note", namespace) is not None
    assert door.clear() == 2


def test_a_door_is_shut_and_opened(
    kubernetes: Kubernetes, door: Door, client: KubeClient, namespace: str
) -> None:
    """A closed door stops only the requests of its own clients, and watches continue when it opens."""
    client.create(NOTE, namespace)
    door.go_away()
    with pytest.raises(urllib3.exceptions.HTTPError):
        client.get("configmap/note", namespace)
    kubernetes.api.annotate("configmap/note", namespace, {"seen": "no"})
    door.clear()

    seen = client.wait("configmap/note", namespace, bool)

    assert seen["metadata"]["annotations"] == {"seen": "no"}
