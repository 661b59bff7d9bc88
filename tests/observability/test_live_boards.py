"""Tests of boards and alerts on a real system: three brokers under load, scraped by a real Prometheus.

`test_spark_board.py` tests the board of Spark jobs, and `tests/kubernetes` tests the board of the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from expressions import metrics_of, patterns_of
from monitored_cluster import (
    Brokers,
    Prometheus,
    Target,
    get,
    load_on,
    names_in,
    running_brokers,
    running_etcd,
    running_prometheus,
    wait_for,
)
from rule_files import RULE_FILES, alerts, boards, panels, rules

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.etcd, pytest.mark.timeout(240)]
BOARDS = ("fairlead-cluster", "fairlead-brokers", "fairlead-topics", "fairlead-groups")
OF_OTHERS = ("fairlead_operator_", "metrics_executor_")
"""Metrics of the operator and of Spark, which other tests check."""
OF_SECURITY = (
    "fairlead_tls_certificate_expiry_timestamp_seconds",
    "fairlead_issuer_keys_age_seconds",
    "fairlead_quota_used_ratio",
    "fairlead_quota_refused_total",
)
"""Metrics without series in a cluster without TLS, issuers and quotas; `tests/security` checks them."""
OF_LINKS = "fairlead_link_"
"""Prefix of metrics without series in a cluster without links; `tests/integration/links` checks them."""


@dataclass(frozen=True)
class Watched:
    """The running system."""

    brokers: Brokers
    etcd: list[Target]
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Run the system for the tests of this file."""
    folder = tmp_path_factory.mktemp("watched")
    with (
        running_brokers(folder) as brokers,
        running_etcd(folder) as etcd,
        load_on(brokers.bootstrap),
        running_prometheus(folder, [*brokers.targets, *etcd], RULE_FILES) as prometheus,
    ):
        # The coordinators publish the lag of groups at intervals.
        wait_for(
            "the lag of both groups is not shown",
            lambda: len(prometheus.query("count by (group) (fairlead_group_lag_records)")) == 2 or None,
        )
        yield Watched(brokers, etcd, prometheus)


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_of_every_panel_gives_series(name: str, watched: Watched) -> None:
    """With a value for each variable, no panel is empty in a working system."""
    empty: list[str] = []

    def nothing_is_empty() -> bool | None:
        empty[:] = [
            f"{panel['title']}: {target['expr']}"
            for panel in panels(boards()[name])
            for target in panel["targets"]
            if metrics_of(target["expr"]).isdisjoint(OF_SECURITY)
            and not any(name.startswith(OF_LINKS) for name in metrics_of(target["expr"]))
            and not watched.prometheus.query(target["expr"])
        ]
        return not empty or None

    try:
        wait_for("some panels are empty", nothing_is_empty)
    except AssertionError:
        pytest.fail("without series:\n" + "\n".join(empty))


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_has_values(name: str, watched: Watched) -> None:
    """Every variable of a board has values."""
    for variable in boards()[name]["templating"]["list"][1:]:
        inside = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
        series, _, label = inside.rpartition(", ")

        def values(series: str = series, label: str = label) -> set[str] | None:
            return {found["metric"].get(label) for found in watched.prometheus.query(series)} - {None} or None

        assert wait_for(f"{variable['name']} has no values", values)


def test_every_metric_of_boards_and_rules_is_exposed(watched: Watched) -> None:
    """Every metric in a query is exposed by the brokers, and every recorded metric is computed from exposed metrics."""
    exposed = watched.brokers.exposed() | set().union(
        *(names_in(get(f"http://{each.address}/metrics")) for each in watched.etcd)
    )
    exposed |= {"up"} | {rule["record"] for rule in rules() if "record" in rule}
    named = {
        name: metrics_of(target["expr"])
        for board in BOARDS
        for panel in panels(boards()[board])
        for target in panel["targets"]
        for name in [f"{board}: {panel['title']}"]
    }
    named |= {
        rule.get("alert") or rule["record"]: metrics_of(rule["expr"])
        for rule in rules()
        if not patterns_of(rule["expr"])
    }
    unknown = {
        where: sorted(name for name in names - exposed if not name.startswith(OF_OTHERS))
        for where, names in named.items()
    }

    assert all(named.values())
    assert {where: names for where, names in unknown.items() if names} == {}


def test_every_rule_is_evaluated_and_nothing_is_wrong(watched: Watched) -> None:
    """Prometheus evaluates every rule without error; recorded rules have series, and no critical alert is pending."""
    grave = {name for name, rule in alerts().items() if rule["labels"]["severity"] == "critical"}

    def all_rules() -> list[dict[str, object]]:
        return [rule for group in watched.prometheus.ask("rules")["groups"] for rule in group["rules"]]

    def evaluated() -> list[dict[str, object]] | None:
        found = all_rules()
        return found if all(rule["health"] == "ok" for rule in found) else None

    def nothing_is_wrong() -> bool | None:
        busy = {rule["name"] for rule in all_rules() if rule.get("state") in ("pending", "firing")}
        return not grave & busy or None

    found = wait_for("some rules are not evaluated", evaluated)
    recorded = [rule["record"] for rule in rules() if "record" in rule]
    for name in recorded:
        assert wait_for(f"{name} has no series", lambda name=name: watched.prometheus.query(name) or None)

    assert len(found) == len(rules())
    # On a busy machine, an answer to a scrape may take longer than the second that a scrape may take, once.
    wait_for("a critical alert is pending", nothing_is_wrong)


def test_a_query_of_a_metric_that_does_not_exist_is_empty(watched: Watched) -> None:
    """A query for a metric that does not exist returns no series, so the test of the panels can fail."""
    assert watched.prometheus.query('fairlead_no_such_metric{namespace=~"$namespace"}') == []
