"""Passes over Rebalances whose brokers do not answer: pauses, missing Clusters, and the removal of finalizers."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from fairlead_operator.brokers.calls import BrokerCalls
from fairlead_operator.brokers.topics import TopicCalls
from fairlead_operator.naming import (
    CLUSTER,
    NAMESPACE,
    REBALANCE,
    REBALANCE_FINALIZER,
    Manifest,
    ObjectRef,
)
from fairlead_operator.ports import Key
from fairlead_operator.reconcile.lasting_rights import LastingRights
from fairlead_operator.reconcile.namespace_end import NamespaceEnd
from fairlead_operator.reconcile.rebalance import WAIT_SECONDS, RebalanceReconciler
from memory_api import MemoryApi, MemoryCache, StandingClock

KEY = Key("Rebalance", "shop", "wider")
DELETED = {"deletionTimestamp": "2026-01-01T11:59:00Z"}
NOBODY = "http://127.0.0.1:1"
MOVING: Manifest = {"state": "Rebalancing", "proposal": {"replicasMoved": 0}}


@pytest.fixture
def api() -> MemoryApi:
    """Return an API server with the namespace `shop`, and the Cluster `main` in it."""
    made = MemoryApi()
    made.put(NAMESPACE, "shop", "")
    made.put(CLUSTER, "main", spec={"brokers": [{"name": "a", "firstBrokerId": 0, "replicas": 1}]})
    return made


@pytest.fixture
def reconciler(api: MemoryApi) -> RebalanceReconciler:
    """Return a reconciler whose brokers never answer."""
    clock, calls = StandingClock(), BrokerCalls(NOBODY)
    rights = LastingRights(api, MemoryCache(api), "", structlog.get_logger())
    return RebalanceReconciler(api, MemoryCache(api), TopicCalls(calls, clock), calls, clock, rights)


def put_rebalance(api: MemoryApi, *, held: bool = True, **parts: Any) -> ObjectRef:
    """Create the Rebalance `wider`, with the operator's finalizer and another finalizer."""
    finalizers = ["others.dev/one", *([REBALANCE_FINALIZER] if held else [])]
    metadata: Manifest = {"finalizers": finalizers, **parts.pop("metadata", {})}
    spec = {"clusterRef": {"name": "main"}, **parts.pop("spec", {})}
    return api.put(REBALANCE, "wider", metadata=metadata, spec=spec, **parts)


def ready(api: MemoryApi, ref: ObjectRef) -> str:
    """Return the reason of the Ready condition."""
    conditions = api.objects[ref]["status"]["conditions"]
    return str(next(each["reason"] for each in conditions if each["type"] == "Ready"))


def is_held(api: MemoryApi, ref: ObjectRef) -> bool:
    """Return whether the Rebalance has the operator's finalizer."""
    return REBALANCE_FINALIZER in api.objects[ref]["metadata"]["finalizers"]


async def test_a_moving_rebalance_is_held_before_its_first_call(
    api: MemoryApi, reconciler: RebalanceReconciler
) -> None:
    """The finalizer is set in a separate pass, and brokers that do not answer are called again later."""
    ref = put_rebalance(api, held=False, status=MOVING)

    assert await reconciler.reconcile(KEY) == 0.0
    assert is_held(api, ref)
    assert await reconciler.reconcile(KEY) == WAIT_SECONDS
    assert ready(api, ref) == "ClusterNotReady"
    assert api.objects[ref]["status"]["state"] == "Rebalancing"
    assert api.events == []


async def test_a_namespace_that_ends_is_not_held(api: MemoryApi, reconciler: RebalanceReconciler) -> None:
    """In a namespace that is being deleted, no finalizer is set, and an existing finalizer is removed."""
    ref = put_rebalance(api, held=False, status=MOVING)
    api.objects[ObjectRef(NAMESPACE, "", "shop")]["metadata"] |= DELETED
    assert await reconciler.reconcile(KEY) is None
    assert not is_held(api, ref)
    ref = put_rebalance(api, status=MOVING)
    assert await NamespaceEnd(api, MemoryCache(api)).let_go("shop")
    assert not is_held(api, ref)
    ref = put_rebalance(api, status=MOVING, metadata=DELETED | {"finalizers": [REBALANCE_FINALIZER]})
    assert await reconciler.reconcile(KEY) is None
    assert ref not in api.objects


async def test_without_its_cluster_a_rebalance_is_released(
    api: MemoryApi, reconciler: RebalanceReconciler
) -> None:
    """A Rebalance without its Cluster keeps its state and is released.

    The deletion of a Rebalance without a Cluster does not wait for brokers.
    """
    ref = put_rebalance(api, status=MOVING)
    del api.objects[ObjectRef(CLUSTER, "shop", "main")]
    assert await reconciler.reconcile(KEY) is None
    assert ready(api, ref) == "ClusterNotFound"
    assert not is_held(api, ref)
    ref = put_rebalance(api, status=MOVING, metadata=DELETED | {"finalizers": [REBALANCE_FINALIZER]})
    assert await reconciler.reconcile(KEY) is None
    assert ref not in api.objects
    assert await reconciler.reconcile(KEY) is None


async def test_a_deletion_waits_for_the_brokers(api: MemoryApi, reconciler: RebalanceReconciler) -> None:
    """A Rebalance whose moves may be in progress is released only after the brokers have answered."""
    ref = put_rebalance(api, status=MOVING, metadata=DELETED)

    assert await reconciler.reconcile(KEY) == WAIT_SECONDS
    assert ready(api, ref) == "Deleting"
    assert is_held(api, ref)
    ref = put_rebalance(api, held=False, status=MOVING, metadata=DELETED)
    assert await reconciler.reconcile(KEY) is None


@pytest.mark.parametrize("kind", [REBALANCE, CLUSTER])
async def test_a_paused_object_changes_nothing(
    api: MemoryApi, reconciler: RebalanceReconciler, kind: Any
) -> None:
    """A paused Rebalance, and a Rebalance of a paused Cluster, report the pause and keep their state."""
    ref = put_rebalance(api, status=MOVING)
    paused = {"annotations": {"fairlead.dev/paused": "true"}}
    api.objects[ref if kind == REBALANCE else ObjectRef(CLUSTER, "shop", "main")]["metadata"] |= paused
    for _ in range(2):
        assert await reconciler.reconcile(KEY) is None

    assert api.writes == ["status"]
    assert {each["reason"] for each in api.objects[ref]["status"]["conditions"]} <= {
        "Annotation",
        "ClusterPaused",
    }


async def test_an_unreadable_object_is_reported_once(api: MemoryApi, reconciler: RebalanceReconciler) -> None:
    """An unreadable Rebalance is reported once, and released when it is deleted."""
    ref = put_rebalance(api, spec={"mode": "Half"}, status={"conditions": "broken"})
    for _ in range(2):
        assert await reconciler.reconcile(KEY) is None
    assert ready(api, ref) == "InvalidSpec"
    assert api.writes == ["status"]
    ref = put_rebalance(api, spec={"mode": "Half"}, metadata=DELETED)
    assert await reconciler.reconcile(KEY) is None
    assert not is_held(api, ref)


async def test_an_ended_rebalance_needs_no_brokers(api: MemoryApi, reconciler: RebalanceReconciler) -> None:
    """A completed Rebalance is released and reported without a call to the brokers."""
    ref = put_rebalance(api, status={**MOVING, "state": "Completed"})

    assert await reconciler.reconcile(KEY) is None
    assert ready(api, ref) == "Completed"
    assert not is_held(api, ref)
