"""Real nodes run real containers: names, services, volumes, exec, logs, and the loss of parts."""

from __future__ import annotations

import pytest

from kube_client import Manifest
from pods import KubernetesPods

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# The server counts its starts in its volume, and answers every request with its name and that number.
SERVER = """
import http.server, os, pathlib
starts = pathlib.Path("/data/starts")
starts.write_text(f"{int(starts.read_text()) + 1 if starts.exists() else 1}")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.environ['POD_NAME']} {starts.read_text()}".encode())
    def log_message(self, *words):
        pass
print("serving", flush=True)
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
ASK = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"


def echo(replicas: int) -> list[Manifest]:
    """Return a StatefulSet of small servers, one per zone, with a volume each, and its Service."""
    labels = {"app": "echo"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    container = {
        "name": "echo",
        "image": "localhost/fairlead:dev",
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", SERVER],
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "readinessProbe": {
            "httpGet": {"path": "/", "port": 8080},
            "periodSeconds": 1,
            "failureThreshold": 2,
        },
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    pod = {
        "securityContext": {"fsGroup": 10001},
        "terminationGracePeriodSeconds": 0,
        "topologySpreadConstraints": [spread],
        "containers": [container],
    }
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "echo"},
        "spec": {
            "replicas": replicas,
            "serviceName": "echo",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }
    ports = [{"port": 80, "targetPort": 8080}]
    every = {"name": "every-echo"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "echo"},
            "spec": {"clusterIP": "None", "selector": labels, "ports": ports},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": every,
            "spec": {"selector": labels, "ports": ports},
        },
        stateful_set,
    ]


def ready(number: int, pod: Manifest | None) -> bool:
    """Return whether `number` pods of a StatefulSet are Ready."""
    return pod is not None and pod["status"].get("readyReplicas", 0) == number


@pytest.fixture
def echoes(kubernetes_pods: KubernetesPods) -> str:
    """Return the namespace of three ready servers."""
    namespace = kubernetes_pods.namespace()
    kubernetes_pods.api.apply(echo(3), namespace)
    kubernetes_pods.api.wait("statefulset/echo", namespace, lambda found: ready(3, found))
    return namespace


@pytest.mark.scenario
def test_pods_are_reached_and_keep_their_data(kubernetes_pods: KubernetesPods, echoes: str) -> None:
    """Each zone runs one pod; pods are reachable by name inside and outside pods, and a deletion keeps their data."""
    api = kubernetes_pods.api
    nodes = {pod["spec"]["nodeName"] for pod in api.list("pod", echoes)}
    by_name = kubernetes_pods.exec("echo-0", echoes, "python3", "-c", ASK, "http://echo-1.echo:8080").split()
    by_service = kubernetes_pods.run("python3", "-c", ASK, f"http://every-echo.{echoes}.svc").stdout.split()
    first = api.get("pod/echo-2", echoes)
    assert first is not None
    api.delete("pod/echo-2", echoes)

    def back(pod: Manifest | None) -> bool:
        return (
            pod is not None
            and pod["metadata"]["uid"] != first["metadata"]["uid"]
            and any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in pod["status"].get("conditions", [])
            )
        )

    api.wait("pod/echo-2", echoes, back)
    again = kubernetes_pods.run("python3", "-c", ASK, f"http://echo-2.echo.{echoes}.svc:8080").stdout.split()

    assert nodes == {"node-1", "node-2", "node-3"}
    assert by_name == ["echo-1", "1"]
    assert by_service[0] in {"echo-0", "echo-1", "echo-2"}
    assert again == ["echo-2", "2"]
    assert kubernetes_pods.logs("echo-2", echoes) == "serving\n"


@pytest.mark.scenario
def test_frozen_pods_are_noticed(kubernetes_pods: KubernetesPods, echoes: str) -> None:
    """A frozen pod is unready until it is resumed, and a killed pod is started again."""
    api = kubernetes_pods.api
    kubernetes_pods.freeze("echo-0", echoes)
    api.wait("statefulset/echo", echoes, lambda found: ready(2, found))
    kubernetes_pods.thaw("echo-0", echoes)
    api.wait("statefulset/echo", echoes, lambda found: ready(3, found))
    kubernetes_pods.kill("echo-1", echoes)

    def restarted(pod: Manifest | None) -> bool:
        states = pod["status"]["containerStatuses"] if pod else []
        return any(state["restartCount"] == 1 and state["ready"] for state in states)

    assert api.wait("pod/echo-1", echoes, restarted)


@pytest.mark.scenario
def test_volumes_grow_and_go_with_their_claims(kubernetes_pods: KubernetesPods, echoes: str) -> None:
    """A volume grows with its claim and is removed with it."""
    api = kubernetes_pods.api
    api.patch("pvc/data-echo-0", echoes, {"spec": {"resources": {"requests": {"storage": "2Mi"}}}})
    claim = api.wait(
        "pvc/data-echo-0",
        echoes,
        lambda found: found and found["status"]["capacity"]["storage"] == "2Mi",
    )
    volume = claim["spec"]["volumeName"]
    folder = kubernetes_pods.box.state / "volumes" / volume
    existed = folder.exists()
    api.delete("statefulset/echo", echoes)
    api.delete("pvc/data-echo-0", echoes)

    api.wait(f"pv/{volume}", None, lambda found: found is None)

    assert existed
    assert not folder.exists()
