"""The README's quick start on real pods: its commands create a cluster that stores and returns a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from chart_tools import ROOT
from shell_pages import Shell, blocks, section

if TYPE_CHECKING:
    from pathlib import Path

    from pods import KubernetesPods

README = ROOT / "README.md"
# The last of these pages restarts brokers, which take a while to become healthy again.
NAMES = ("install", "topics", "troubleshooting", "clusters")
PAGES = [ROOT / f"docs/how-to/kubernetes-{name}.md" for name in NAMES]
TEST_A_TOPIC = """
kubectl apply --filename - <<EOF
apiVersion: fairlead.dev/v1alpha1
kind: User
metadata: {name: helm-test}
spec: {clusterRef: {name: main}, acls: [{operations: [all], topics: ["helm-test-*"]}]}
EOF
kubectl wait flu/helm-test --for=condition=Ready --timeout=2m
helm upgrade fairlead-operator charts/fairlead-operator --namespace fairlead --wait \\
    --set test.bootstrap=https://main-bootstrap.fairlead.svc:9520 --set test.secretName=helm-test
helm test fairlead-operator --namespace fairlead
"""


@pytest.mark.timeout(600)
def test_quick_start(kubernetes_pods: KubernetesPods, tmp_path: Path) -> None:
    """The quick start installs the operator with Helm and three brokers with etcd, and reads the written record.

    After the quick start, every block of the how-to guides that waits for real pods works, as does the chart's test
    that creates a topic.
    """
    shell = Shell(kubernetes_pods, tmp_path)
    quick_start = blocks(section(README, "Kubernetes quick start"))
    printed = [shell.run(block.text) for block in quick_start]
    tested = shell.run(TEST_A_TOPIC)
    waiting = [one for page in PAGES for one in blocks(page.read_text(encoding="utf-8")) if one.needs_pods]
    for block in waiting:
        shell.run(block.text)

    assert len(quick_start) == 2
    assert printed[-1] == "a book and a lamp\n"
    assert "Phase:          Succeeded" in tested
    assert len(waiting) == 7
