"""Metrics of brokers and of the operator, to which dashboards and alerts refer. The client library has no metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client.metrics import MetricWrapperBase

import fairlead_broker.telemetry
import fairlead_operator.telemetry
import golden
from fairlead_api.metrics import METRICS, PROCESS_METRICS
from fairlead_broker.telemetry import TopicMetric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def metrics() -> Any:
    """Describe every metric that broker and operator register, and the metrics of their processes."""
    return {
        "broker": _registered(fairlead_broker.telemetry.Telemetry().registry),
        "operator": {
            **_registered(fairlead_operator.telemetry.Telemetry().registry),
            "fairlead_operator_condition": {
                "type": "gauge",
                "labels": list(fairlead_operator.telemetry.ConditionRow._fields),
                "buckets": [],
            },
        },
        "process": {each.name: each.kind.value for each in PROCESS_METRICS},
    }


def _registered(registry: CollectorRegistry) -> Any:
    topics = [each.definition for each in registry._collector_to_names if isinstance(each, TopicMetric)]
    return {
        each.name: {"type": each.kind.value, "labels": list(each.labels), "buckets": []} for each in topics
    } | {
        # The Prometheus library stores a counter's name without the suffix `_total`.
        each._name + ("_total" if each._type == "counter" else ""): {
            "type": each._type,
            "labels": list(each._labelnames),
            "buckets": list(each._kwargs.get("buckets", ())),
        }
        for each in registry._collector_to_names
        if isinstance(each, MetricWrapperBase)
    }


def test_the_metrics_are_unchanged() -> None:
    """Metrics keep their names, types, labels and buckets."""
    golden.assert_unchanged("metrics", metrics())


def test_the_catalogue_is_what_a_broker_registers() -> None:
    """The golden file contains every metric of a broker's catalogue."""
    assert set(metrics()["broker"]) == {each.name for each in METRICS}
