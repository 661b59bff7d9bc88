"""Passes over Clusters that need no brokers."""

from __future__ import annotations

import pytest
import structlog

from fairlead_operator.brokers.calls import BrokerCalls
from fairlead_operator.etcd_members import EtcdMembersClient
from fairlead_operator.naming import CLUSTER
from fairlead_operator.ports import Key
from fairlead_operator.reconcile.certificates import CertificatesStep
from fairlead_operator.reconcile.cluster import ClusterReconciler
from fairlead_operator.reconcile.etcd import EtcdStep
from memory_api import MemoryApi, MemoryCache, StandingClock
from render_kit import IMAGES, POOL

KEY = Key("Cluster", "shop", "main")
NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize("word", ["true", "True"])
async def test_a_paused_cluster_is_left_alone(word: str) -> None:
    """A paused Cluster is reported once, and its observed generation does not change."""
    api, log = MemoryApi(), structlog.get_logger()
    ref = api.put(
        CLUSTER, "main", metadata={"annotations": {"fairlead.dev/paused": word}}, spec={"brokers": [POOL]}
    )
    reconciler = ClusterReconciler(
        api,
        MemoryCache(api),
        BrokerCalls(NOBODY),
        EtcdStep(api, EtcdMembersClient(), url=NOBODY, log=log),
        certificates=CertificatesStep(api, StandingClock(), log),
        images=IMAGES,
        operator_namespace="operators",
        clock=StandingClock(),
        log=log,
    )
    for _ in range(2):
        assert await reconciler.reconcile(KEY) is None

    status = api.objects[ref]["status"]
    assert [each["type"] for each in status["conditions"]] == ["ReconciliationPaused"]
    assert "observedGeneration" not in status
    assert api.writes == ["status"]
