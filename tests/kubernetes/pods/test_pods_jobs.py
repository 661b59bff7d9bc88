"""A Spark job on real pods, as on its page: driver, executor, and a Cluster that they read and write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from chart_tools import POD_MONITORS, ROOT
from cluster_words import a_cluster, is_done
from images import SPARK_IMAGE, make_product_images
from operator_process import Operators, install_definitions
from pods_stage import DEFAULT_URLS, is_ready
from shell_pages import Shell, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kube_client import Manifest
    from pods import KubernetesPods

PAGE = ROOT / "docs/how-to/spark-on-kubernetes.md"
MONITORS = "podmonitors.monitoring.coreos.com"
CLUSTER_SECONDS = 180.0
FOURTH_WINDOW = """
kubectl rollout status statefulset/flights --timeout=3m
kubectl exec --stdin main-a-0 -- fairlead produce flights <<'END'
{"carrier": "UA", "dep_delay": 3, "time_hour": "2013-01-02T04:00:00Z"}
END
kubectl exec main-a-0 -- fairlead consume flight-windows --from-beginning --count 4
"""


@pytest.fixture
def spark_node(kubernetes_pods: KubernetesPods) -> Iterator[str]:
    """Yield the only schedulable node, which has the image."""
    first, *others = kubernetes_pods.nodes
    make_product_images(spark=True)
    kubernetes_pods.load_images([SPARK_IMAGE], [first])
    kubernetes_pods.kubectl("cordon", *others)
    yield first
    kubernetes_pods.kubectl("uncordon", *others)


@pytest.fixture
def monitors(kubernetes_pods: KubernetesPods) -> Iterator[None]:
    """Define the kind PodMonitor of the Prometheus operator during the test."""
    kubernetes_pods.api.apply(POD_MONITORS)
    kubernetes_pods.kubectl("wait", "--for=condition=Established", f"crd/{MONITORS}")
    yield
    kubernetes_pods.api.delete(f"customresourcedefinition/{MONITORS}")


@pytest.fixture
def namespace(kubernetes_pods: KubernetesPods, tmp_path: Path) -> Iterator[str]:
    """Yield a namespace with the Cluster `main` of one broker and its operator, and remove both at the end."""
    install_definitions(kubernetes_pods)
    namespace = kubernetes_pods.namespace()
    operators = Operators(kubernetes_pods, tmp_path)
    try:
        operators.start(namespace, environment=DEFAULT_URLS)
        kubernetes_pods.api.apply(a_cluster(1), namespace)
        kubernetes_pods.api.wait("clusters.fairlead.dev/main", namespace, is_done, CLUSTER_SECONDS)
        yield namespace
    finally:
        operators.stop_all()
        kubernetes_pods.api.delete(f"namespace/{namespace}")


def scraped(kubernetes: KubernetesPods, namespace: str) -> list[str]:
    """Return the metrics that Prometheus gets from the targets of the PodMonitor."""
    monitor: Any = kubernetes.api.get(f"{MONITORS}/flights", namespace)
    pod: Any = kubernetes.api.get("pod/flights-0", namespace)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
    return [
        kubernetes.run(
            "curl", "-sSf", f"http://{pod['status']['podIP']}:{ports[each['port']]}{each['path']}"
        ).stdout
        for each in monitor["spec"]["podMetricsEndpoints"]
    ]


def owners(pod: Manifest) -> list[str]:
    """Return the uids of a pod's owners."""
    return [each["uid"] for each in pod["metadata"].get("ownerReferences", [])]


# The test takes minutes on a loaded machine.
@pytest.mark.scenario
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark_node", "monitors")
def test_a_job_reads_a_cluster_and_writes_back(
    kubernetes_pods: KubernetesPods, namespace: str, tmp_path: Path
) -> None:
    """A job of the page works as written and writes its windows, even after its driver's pod was deleted.

    The last driver exposes metrics of its query and of its executor.
    """
    shell, windows = Shell(kubernetes_pods, tmp_path / "shell"), list[str]()
    pods: list[dict[str, Any]] = []
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.language != "sh":
            continue
        said = shell.run(re.sub(r"(--namespace) fairlead\b", rf"\1 {namespace}", block.text))
        if "consume" in block.text:
            windows.append(re.sub(r"^\S.*deleted.*\n", "", said, flags=re.MULTILINE))
            found = kubernetes_pods.api.list("pods", namespace, "app.kubernetes.io/name=fairlead-jobs")
            pods.append({each["metadata"]["name"]: each for each in found if is_ready(each)})
    shell.run(FOURTH_WINDOW)
    query, executors_metrics = scraped(kubernetes_pods, namespace)
    printed = next(
        block.text for block in blocks(PAGE.read_text(encoding="utf-8")) if block.language == "text"
    )
    drivers = [each["flights-0"]["metadata"]["uid"] for each in pods]
    executors = [each for name, each in pods[0].items() if name != "flights-0"]

    assert sorted(windows[0].splitlines()) == printed.splitlines()
    assert set(windows[1].splitlines()) > set(windows[0].splitlines())
    assert len(windows[1].splitlines()) == 3
    assert drivers[0] != drivers[1]
    assert [owners(each) for each in executors] == [[drivers[0]]]
    assert "_spark_streaming_flight_windows_" in query
    assert 'executor_id="1"' in executors_metrics
