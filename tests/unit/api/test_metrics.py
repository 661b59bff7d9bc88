"""The catalogue of metrics follows Prometheus' rules."""

from __future__ import annotations

import re

import pytest

from fairlead_api.metrics import METRICS, MetricDefinition, MetricKind

UNITS = (
    *("_seconds", "_bytes", "_total", "_info", "_offset", "_waiting", "_batches", "_calls", "_ranges"),
    *(
        "_partitions",
        "_replicas",
        "_records",
        "_epoch",
        "_active",
        "_groups",
        "_members",
        "_callers",
        "_connections",
        "_failed",
        "_ratio",
        "_ratio_max",
        "_open",
        "_clients",
        "_sessions",
        # Numbers of voters of a partition with a write quorum.
        "_voters",
        "_near",
        "_write",
        "_promises",
        # Facts and counts of links.
        "_reachable",
        "_topics",
    ),
)


def test_names_are_unique() -> None:
    """Names of metrics are unique."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_keeps_the_rules(metric: MetricDefinition) -> None:
    """A metric has the prefix, a unit and one sentence of help, and only the names of counters end in `_total`."""
    assert re.fullmatch(r"fairlead_[a-z_]+[a-z]", metric.name)
    assert metric.name.endswith(UNITS)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.help.endswith(".")
    assert not {"le", "quantile", "path", "url"} & set(metric.labels)
