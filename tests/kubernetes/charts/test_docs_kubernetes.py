"""The how-to guides on Kubernetes: a control plane accepts every command and every manifest in order.

Commands that wait for programs that really run are tested with pods (`test_docs_pods.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from chart_tools import DEFINITIONS, POD_MONITORS, ROOT
from operator_process import install_definitions
from shell_pages import Shell, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from kubernetes_under_test import Kubernetes

HOW_TO = ROOT / "docs/how-to"
INSTALL, CLUSTERS, TOPICS, REBALANCE, BACKUP, TROUBLE, LINKS = (
    HOW_TO / f"kubernetes-{name}.md"
    for name in ("install", "clusters", "topics", "rebalance", "backup", "troubleshooting", "links")
)

EXTERNAL = HOW_TO / "kubernetes-external-access.md"
SECURITY = HOW_TO / "security-on-kubernetes.md"
SPARK = HOW_TO / "spark-on-kubernetes.md"


def run_page(page: Path, kubernetes: Kubernetes, folder: Path) -> int:
    """Run the commands of a page that need no pods, validate its manifests on the server, and count both."""
    shell, done = Shell(kubernetes, folder), 0
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "sh" and not block.needs_pods:
            shell.run(block.text)
            done += 1
        elif block.language == "yaml":
            kubernetes.api.apply(block.text, "fairlead", dry_run=True)
            done += 1
    return done


def make_room(kubernetes: Kubernetes) -> None:
    """Install the definitions, and remove Fairlead's objects from the namespace that the pages use."""
    install_definitions(kubernetes)
    for name in DEFINITIONS:
        # The storage of a kind is ready a little later than its definition.
        kubernetes.api.wait_list(name, None, lambda _: True)
    if kubernetes.api.get("namespace/fairlead") is None:
        kubernetes.api.apply((ROOT / "manifests/base/namespace.yaml").read_text(encoding="utf-8"))


def remove_operators(kubernetes: Kubernetes) -> None:
    """Remove operators that other tests installed without Helm, for pages that install with Helm."""
    ours = ("--selector", "app.kubernetes.io/name=fairlead-operator", "--wait=false")
    namespaced = "deployment,role,rolebinding,service,serviceaccount,networkpolicy,poddisruptionbudget"
    kubernetes.kubectl("delete", namespaced, "--namespace", "fairlead", *ours)
    kubernetes.kubectl("delete", "clusterrole,clusterrolebinding", *ours)


def test_installing(kubernetes_alone: Kubernetes, tmp_path: Path) -> None:
    """Every way of installing the operator that the page describes works as written, one after another."""
    kubernetes_alone.api.apply(POD_MONITORS)
    remove_operators(kubernetes_alone)
    done = run_page(INSTALL, kubernetes_alone, tmp_path)
    deployment: Any = kubernetes_alone.api.get("deployment/fairlead-operator", "fairlead")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]

    assert done == 14
    assert {"name": "FAIRLEAD_OPERATOR_NAMESPACES", "value": "*"} in container["env"]
    assert kubernetes_alone.api.get("deployment/fairlead-operator", "fairlead-second")


def test_changes(kubernetes_alone: Kubernetes, tmp_path: Path) -> None:
    """Every change of a resource and a job on the pages is accepted by the API server.

    The Cluster and the Topic are deleted at the end of their pages, and the job has a driver.
    """
    api = kubernetes_alone.api
    make_room(kubernetes_alone)
    of_clusters = run_page(CLUSTERS, kubernetes_alone, tmp_path / "clusters")
    api.wait("flc/main", "fairlead", lambda found: found is None)
    api.apply(
        yaml.safe_load((ROOT / "manifests/samples/cluster.yaml").read_text(encoding="utf-8")), "fairlead"
    )
    of_listeners = run_page(EXTERNAL, kubernetes_alone, tmp_path / "external")
    looked = run_page(TROUBLE, kubernetes_alone, tmp_path / "trouble")
    of_topics = run_page(TOPICS, kubernetes_alone, tmp_path / "topics")
    of_backups = run_page(BACKUP, kubernetes_alone, tmp_path / "backup")
    of_moves = run_page(REBALANCE, kubernetes_alone, tmp_path / "rebalance")
    of_links = run_page(LINKS, kubernetes_alone, tmp_path / "links")
    topic = api.get("flt/orders", "fairlead")
    of_jobs = run_page(SPARK, kubernetes_alone, tmp_path / "spark")
    of_security = run_page(SECURITY, kubernetes_alone, tmp_path / "security")
    driver: Any = api.get("statefulset/flights", "fairlead")
    (container,) = driver["spec"]["template"]["spec"]["containers"]

    counts = (
        of_clusters,
        of_listeners,
        looked,
        of_topics,
        of_moves,
        of_backups,
        of_links,
        of_jobs,
        of_security,
    )
    assert counts == (20, 9, 1, 8, 8, 6, 8, 3, 5)
    assert topic is None
    assert "spark.sql.streaming.noDataMicroBatches.enabled=true" in container["args"]
    kubernetes_alone.kubectl("delete", "--filename", str(ROOT / "manifests/spark/job.yaml"), "--wait=false")
