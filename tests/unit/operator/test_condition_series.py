"""Series of conditions at the operator's metrics listener."""

from __future__ import annotations

import structlog
from prometheus_client import generate_latest

from fairlead_operator.api_server.cache import WatchedObjects
from fairlead_operator.naming import CLUSTER, TOPIC, Kind, Manifest
from fairlead_operator.telemetry import Telemetry
from fairlead_operator.wiring import condition_rows


def resource(kind: Kind, name: str, *conditions: tuple[str, str, str]) -> Manifest:
    """Return a resource with conditions: type, status and reason."""
    told = [{"type": type_, "status": status, "reason": reason} for type_, status, reason in conditions]
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"kind": kind.kind, "metadata": metadata, "status": {"conditions": told}}


def test_conditions_are_series_with_names_and_reasons() -> None:
    """A Cluster shows all conditions, and a Topic only conditions that need attention."""
    cache, telemetry = WatchedObjects(), Telemetry(structlog.get_logger())
    telemetry.show_conditions(lambda: condition_rows(cache))
    ready, lost = ("Ready", "True", "Available"), ("EtcdHealthy", "False", "QuorumLost")
    cache.observe(CLUSTER, resource(CLUSTER, "main", ready, lost, ("Tomorrow", "True", "New")))
    cache.observe(TOPIC, resource(TOPIC, "good", ready, ("Progressing", "False", "UpToDate")))
    cache.observe(
        TOPIC, resource(TOPIC, "bad", ("Ready", "Unknown", "NotReconciled"), ("Warning", "True", "X"))
    )
    cache.observe(
        TOPIC, {"metadata": {"name": "new", "namespace": "shop", "uid": "u", "resourceVersion": "1"}}
    )
    shown = {
        tuple(
            sample.labels[label] for label in ("kind", "resource", "condition", "status", "reason")
        ): sample.value
        for family in telemetry.registry.collect()
        if family.name == "fairlead_operator_condition"
        for sample in family.samples
    }

    assert shown == {
        ("Cluster", "main", *ready): 1.0,
        ("Cluster", "main", *lost): 1.0,
        ("Cluster", "main", "Tomorrow", "True", "New"): 1.0,
        ("Topic", "bad", "Ready", "Unknown", "NotReconciled"): 1.0,
        ("Topic", "bad", "Warning", "True", "X"): 1.0,
    }
    assert 'resource_namespace="shop"' in generate_latest(telemetry.registry).decode()
