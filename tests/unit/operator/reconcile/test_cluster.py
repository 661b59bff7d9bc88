"""Passes over Clusters that need no brokers."""

from __future__ import annotations

import pytest
import structlog

from fairlead_operator.brokers.calls import BrokerCalls
from fairlead_operator.etcd_members import EtcdMembersClient
from fairlead_operator.naming import (
    CERTIFICATE,
    CLUSTER,
    OWNED_KINDS,
    SECRET,
    USER,
    Kind,
    Manifest,
    ObjectRef,
)
from fairlead_operator.ports import Key, NotFound, Propagation
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
        EtcdStep(api, EtcdMembersClient(), url=NOBODY, tls_url=NOBODY, log=log),
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


class WholeApi(MemoryApi):
    """An API server that stores and lists every object, with or without the kind Certificate."""

    def __init__(self, *, has_certificates: bool) -> None:
        """Start without objects."""
        super().__init__()
        self._has_certificates = has_certificates

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> list[Manifest]:
        """Return the objects of a kind."""
        return [each for ref, each in self.objects.items() if ref.kind == kind]

    async def apply(self, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        """Store an object."""
        kind = next(
            each for each in (*OWNED_KINDS, SECRET, CERTIFICATE, USER) if each.kind == manifest["kind"]
        )
        if kind == CERTIFICATE and not self._has_certificates:
            raise NotFound(404, "NotFound", "no such kind")
        self.objects[ObjectRef(kind, "shop", manifest["metadata"]["name"])] = manifest
        manifest["metadata"].setdefault("uid", f"uid-{manifest['metadata']['name']}")
        return manifest

    async def delete(
        self, ref: ObjectRef, *, uid: str | None = None, propagation: Propagation = "Background"
    ) -> bool:
        """Delete an object at once."""
        assert uid == self.objects[ref]["metadata"]["uid"]
        del self.objects[ref]
        return True

    async def apply_if_changed(self, manifest: Manifest, live: Manifest | None) -> bool:
        """Store an object."""
        await self.apply(manifest)
        return True


@pytest.mark.parametrize("has_certificates", [True, False])
async def test_a_cluster_may_name_an_issuer_of_cert_manager(*, has_certificates: bool) -> None:
    """A Cluster with an issuer gets a Certificate, which is deleted when the Cluster no longer names the issuer.

    The User of Prometheus is created while metrics need a token, and deleted afterwards. Without the kind Certificate,
    the other objects are created and the status has a warning. Brokers are created when their certificate exists.
    """
    api, log = WholeApi(has_certificates=has_certificates), structlog.get_logger()
    tls: Manifest = {"mode": "Required", "certificate": {"issuerRef": {"name": "corp"}}}
    security = {"mode": "Enforce", "metrics": "Token", "tls": tls}
    ref = api.put(CLUSTER, "main", spec={"brokers": [POOL], "security": security})
    reconciler = ClusterReconciler(
        api,
        MemoryCache(api),
        BrokerCalls(NOBODY),
        EtcdStep(api, EtcdMembersClient(), url=NOBODY, tls_url=NOBODY, log=log),
        certificates=CertificatesStep(api, StandingClock(), log),
        images=IMAGES,
        operator_namespace="operators",
        clock=StandingClock(),
        log=log,
    )
    await reconciler.reconcile(KEY)
    stored = {f"{each.kind.kind}/{each.name}" for each in api.objects}
    conditions = {each["type"]: each for each in api.objects[ref]["status"]["conditions"]}
    foreign = api.put(CERTIFICATE, "other-clients-tls")
    del tls["certificate"], security["metrics"]
    await reconciler.reconcile(KEY)

    assert {ref for ref in api.objects if ref.kind in (CERTIFICATE, USER)} == {foreign}
    assert "StatefulSet/main-a" not in stored
    assert "StatefulSet/main-a" in {f"{each.kind.kind}/{each.name}" for each in api.objects}
    assert {
        "StatefulSet/main-etcd",
        "Secret/main-etcd-client",
        "ConfigMap/main-ca",
        "User/main-metrics",
    } <= stored
    assert ("Certificate/main-clients-tls" in stored) == has_certificates
    assert (conditions.get("Warning", {}).get("reason") == "ObjectsRefused") != has_certificates
    assert conditions["CertificatesReady"]["message"] == "Secret main-clients-tls does not exist yet"
