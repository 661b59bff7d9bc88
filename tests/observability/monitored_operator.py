"""An operator on a real API server, and a Prometheus that scrapes it in the network of that server's box.

`tests/kubernetes/operator/test_operator_board.py` and `docs/generate/board_pictures.py` start the operator.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from monitored_cluster import NAMESPACE, Prometheus, Target, running_prometheus
from operator_process import ASK, OperatorProcess, Operators

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CLUSTER: Final[dict[str, Any]] = {
    "apiVersion": "fairlead.dev/v1alpha1",
    "kind": "Cluster",
    "metadata": {"name": "main"},
    "spec": {
        "brokers": [{"name": "a", "replicas": 1, "storage": {"size": "1Gi"}}],
        "etcd": {"managed": {"replicas": 1, "storage": {"size": "1Gi"}}},
    },
}


def topic(name: str) -> dict[str, Any]:
    """Return a Topic of the Cluster of this test."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "main"}, "partitions": 3},
    }


@contextmanager
def monitored_operator(
    operators: Operators, namespace: str, folder: Path, rules: Sequence[Path]
) -> Iterator[tuple[OperatorProcess, Prometheus]]:
    """Run an operator that checks every resource every 5 seconds, and scrape it."""
    kubernetes = operators.kubernetes
    operator = operators.start(namespace, environment={"FAIRLEAD_OPERATOR_RESYNC_SECONDS": "5"})

    def fetch(url: str) -> str:
        try:
            return kubernetes.run(sys.executable, "-c", ASK, url).stdout
        except (AssertionError, subprocess.CalledProcessError) as error:
            # The resource does not exist yet.
            raise ConnectionError(url) from error

    labels = {"namespace": NAMESPACE, "pod": "operator-0", "fairlead_component": "operator"}
    target = Target("operator", f"127.0.0.1:{operator.port}", labels)
    with running_prometheus(folder, [target], rules, enter=kubernetes.enter, fetch=fetch) as prometheus:
        yield operator, prometheus
