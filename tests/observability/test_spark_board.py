"""Tests of the board for Spark jobs with a real query that reads a topic of real brokers, scraped by Prometheus."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from expressions import metrics_of, patterns_of
from monitored_cluster import (
    CHOSEN,
    get,
    load_on,
    names_in,
    running_brokers,
    running_prometheus,
    wait_for,
)
from monitored_job import GROUP, PATHS, job_targets, running_job
from rule_files import boards, panels, rules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from monitored_cluster import Prometheus

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(300)]
LAG_OF_JOB = f'fairlead_group_lag_records{{group="{GROUP}"}}'


def empty_panels(prometheus: Prometheus) -> Iterator[str]:
    """Yield the panel title and the expression of each query that returns no series at present."""
    for panel in panels(boards()["fairlead-spark"]):
        for target in panel["targets"]:
            if not prometheus.query(target["expr"]):
                yield f"{panel['title']}: {target['expr']}"


@pytest.mark.scenario
def test_every_query_of_the_board_gives_series(tmp_path: Path) -> None:
    """The board shows lag, rates and memory of the job, and Spark exposes every metric of the board."""
    with (
        running_brokers(tmp_path, brokers=1) as brokers,
        load_on(brokers.bootstrap, replicas=1, write_seconds=0.5),
        running_job(brokers.bootstrap, tmp_path) as port,
        running_prometheus(tmp_path, [*brokers.targets, *job_targets(port)], []) as prometheus,
    ):
        with suppress(AssertionError):
            wait_for(
                "some panels are empty",
                lambda: (prometheus.query(LAG_OF_JOB) and not any(empty_panels(prometheus))) or None,
            )
        empty = list(empty_panels(prometheus))
        groups = prometheus.query("count by (group) (fairlead_group_lag_records)")
        by_query = [
            target["expr"]
            for panel in panels(boards()["fairlead-spark"])
            for target in panel["targets"]
            if "__name__" in target["expr"]
        ]
        queries = {series["metric"]["query"] for each in by_query for series in prometheus.query(each)}
        exposed = brokers.exposed().union(
            *(names_in(get(f"http://127.0.0.1:{port}{path}")) for path in PATHS)
        )

    named = set().union(
        *(
            metrics_of(target["expr"])
            for panel in panels(boards()["fairlead-spark"])
            for target in panel["targets"]
        )
    )
    alerting = [rule["expr"] for rule in rules() if "metrics_" in rule["expr"]]
    patterns = set().union(*(patterns_of(each) for each in (*by_query, *alerting)))
    named |= set().union(*map(metrics_of, alerting))
    assert empty == []
    assert len(alerting) == 2
    assert GROUP in {series["metric"]["group"] for series in groups}
    assert queries == {"flight_windows"}
    assert named - exposed == set()
    assert all(any(re.fullmatch(pattern, name) for name in exposed) for pattern in patterns)
    assert "$job_namespace" in CHOSEN
