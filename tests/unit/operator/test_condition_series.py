"""Series of conditions at the operator's metrics listener."""

from __future__ import annotations

import structlog
from prometheus_client import generate_latest

from fairlead_operator.api_server.cache import WatchedObjects
from fairlead_operator.naming import CLUSTER, ETCD_BACKUP, REBALANCE, TOPIC, Kind, Manifest
from fairlead_operator.telemetry import Telemetry
from fairlead_operator.wiring import condition_rows, rebalance_rows


def resource(kind: Kind, name: str, *conditions: tuple[str, str, str]) -> Manifest:
    """Return a resource with conditions: type, status and reason."""
    told = [{"type": type_, "status": status, "reason": reason} for type_, status, reason in conditions]
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"kind": kind.kind, "metadata": metadata, "status": {"conditions": told}}


def test_conditions_are_series_with_names_and_reasons() -> None:
    """The metrics contain all conditions of a Cluster, and of other resources only conditions that need attention."""
    cache, telemetry = WatchedObjects(), Telemetry(structlog.get_logger())
    telemetry.show_conditions(lambda: condition_rows(cache))
    ready, lost = ("Ready", "True", "Available"), ("EtcdHealthy", "False", "QuorumLost")
    cache.observe(CLUSTER, resource(CLUSTER, "main", ready, lost, ("Tomorrow", "True", "New")))
    cache.observe(TOPIC, resource(TOPIC, "good", ready, ("Progressing", "False", "UpToDate")))
    cache.observe(
        TOPIC, resource(TOPIC, "bad", ("Ready", "Unknown", "NotReconciled"), ("Warning", "True", "X"))
    )
    cache.observe(ETCD_BACKUP, resource(ETCD_BACKUP, "nightly", ("Ready", "False", "SnapshotOverdue")))
    cache.observe(ETCD_BACKUP, resource(ETCD_BACKUP, "hourly", ("Ready", "True", "Scheduled")))
    cache.observe(REBALANCE, resource(REBALANCE, "spread", ("Ready", "False", "BrokersRefused")))
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
        ("EtcdBackup", "nightly", "Ready", "False", "SnapshotOverdue"): 1.0,
        ("Rebalance", "spread", "Ready", "False", "BrokersRefused"): 1.0,
    }
    assert 'resource_namespace="shop"' in generate_latest(telemetry.registry).decode()


def test_a_rebalance_in_progress_shows_the_partitions_that_are_left() -> None:
    """Only a Rebalance whose moves have begun has a series: the number of partitions that are left."""
    cache, telemetry = WatchedObjects(), Telemetry(structlog.get_logger())
    telemetry.show_rebalances(lambda: rebalance_rows(cache))
    progress = {"partitionsTotal": 9, "partitionsMoved": 2, "partitionsMoving": 1}
    states = {"moves": "Rebalancing", "waits": "ProposalReady", "begins": "Rebalancing", "done": "Completed"}
    for name, state in states.items():
        manifest = resource(REBALANCE, name)
        manifest["status"] |= {"state": state} | ({} if name == "begins" else {"progress": progress})
        cache.observe(REBALANCE, manifest)
    name = "fairlead_operator_rebalance_partitions_left"
    values = {
        each: telemetry.registry.get_sample_value(name, {"resource_namespace": "shop", "resource": each})
        for each in states
    }

    assert values == {"moves": 7.0, "waits": None, "begins": None, "done": None}
