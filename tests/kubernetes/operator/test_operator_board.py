"""The operator's board and alerts: an operator works on a real API server, and Prometheus scrapes it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from expressions import metrics_of
from monitored_cluster import Prometheus, names_in, wait_for
from monitored_operator import CLUSTER, monitored_operator, topic
from rule_files import RULE_FILES, boards, panels, rules

if TYPE_CHECKING:
    from pathlib import Path

    from kubernetes_under_test import Kubernetes
    from operator_process import Operators


def series_of(prometheus: Prometheus, expression: str) -> list[Any] | None:
    """Return the series that a query returns, or None if there are none."""
    return prometheus.query(expression) or None


@pytest.mark.scenario
def test_every_query_of_the_board_gives_series(
    kubernetes: Kubernetes, operators: Operators, namespace: str, tmp_path: Path
) -> None:
    """Every query of the operator's board returns series for a Cluster and a Topic whose brokers do not answer."""
    mark = kubernetes.audit_mark()
    for resource in (CLUSTER, topic("orders")):
        kubernetes.api.apply(resource, namespace)
    expressions = [
        each["expr"] for panel in panels(boards()["fairlead-operator"]) for each in panel["targets"]
    ]
    with monitored_operator(operators, namespace, tmp_path, RULE_FILES) as (operator, prometheus):
        for expression in expressions:
            wait_for(f"no series of {expression}", partial(series_of, prometheus, expression))
        not_ready = prometheus.query("sum(fairlead_operator_resources_not_ready)")
        exposed = names_in(operators.ask(operator, "/metrics")) | {"up"}
        forbidden = operators.forbidden(operator.user, mark)
    asked = expressions + [rule["expr"] for rule in rules() if "fairlead_operator_" in rule["expr"]]

    # No broker answers, so the Topic is not ready; the Cluster may be ready for a while.
    assert float(not_ready[0]["value"][1]) >= 1
    # Metrics of etcd, which one alert compares with the operator's, are tested with the boards of brokers.
    named = {each for each in set().union(*map(metrics_of, asked)) if not each.startswith("etcd_")}
    assert named - exposed == set()
    assert forbidden == []
