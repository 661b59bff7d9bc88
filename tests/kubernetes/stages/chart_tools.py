"""Shared helpers for tests of charts, manifests and how-tos: files, tools, and a separate control plane.

Definitions and cluster roles belong to a whole Kubernetes cluster. Tests that install, change and remove definitions or
cluster roles use a second control plane, one test at a time.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from daemons import GARBAGE
from go_programs import program
from made_files import make_chart_files, make_manifests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubernetes_under_test import Kubernetes

ROOT = Path(__file__).resolve().parents[3]
OPERATOR_CHART = ROOT / "charts/fairlead-operator"
CLUSTER_CHART = ROOT / "charts/fairlead-cluster"
JOBS_CHART = ROOT / "charts/fairlead-jobs"
CHARTS = (OPERATOR_CHART, CLUSTER_CHART, JOBS_CHART)
CI_VALUES = sorted(path for chart in CHARTS for path in chart.glob("ci/*-values.yaml"))
# The custom resource definitions of the Prometheus operator that the tests use.
POD_MONITORS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: podmonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {plural: podmonitors, singular: podmonitor, kind: PodMonitor}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
PROMETHEUS_RULES = POD_MONITORS.replace("podmonitor", "prometheusrule").replace(
    "PodMonitor", "PrometheusRule"
)
# Names of Fairlead's custom resource definitions, such as `clusters.fairlead.dev`.
DEFINITIONS = tuple(sorted(path.stem for path in (ROOT / "manifests/crds").glob("*.fairlead.dev.yaml")))


def tool(name: str, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program that needs no cluster; raise `AssertionError` with its output if it fails and `check` is true."""
    make_chart_files()
    command = [str(program(name)), *map(str, arguments)]
    environment = {**os.environ, **GARBAGE}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, (
        f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done


def render(chart: Path, *settings: str | Path, helm: str = "helm4") -> str:
    """Return the objects that a chart renders, tests included, in namespace fairlead, with the docs' release name."""
    release = {OPERATOR_CHART: "fairlead-operator", JOBS_CHART: "flights"}.get(chart, "main")
    # A Helm that its own makefile did not build assumes an old Kubernetes release when it has no cluster.
    cluster = ("--kube-version", "1.36.0", "--api-versions", "monitoring.coreos.com/v1")
    return tool(helm, "template", release, chart, "--namespace", "fairlead", *cluster, *settings).stdout


REMOVED_SECONDS: Final = 150.0
"""Time limit for the removal of a definition. An API server that cannot list the objects of the definition, because it
has just opened their storage, tries again after a minute.
"""


@contextmanager
def alone(kubernetes: Kubernetes) -> Iterator[None]:
    """Reserve the control plane that workers share, and remove Fairlead's definitions.

    The files that these tests install are generated first.
    """
    make_manifests()
    with (kubernetes.box.state / "alone").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in DEFINITIONS:
            kubernetes.api.delete(f"customresourcedefinition/{name}")
        for name in DEFINITIONS:
            definition = f"customresourcedefinition/{name}"
            kubernetes.api.wait(definition, None, lambda found: found is None, REMOVED_SECONDS)
        yield
