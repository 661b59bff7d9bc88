"""Passes over Links whose brokers do not answer: the Secret with the credentials of all links (rule K6)."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import structlog

from fairlead_operator.brokers.calls import BrokerCalls
from fairlead_operator.naming import (
    CLUSTER,
    LINK,
    LINK_FINALIZER,
    NAMESPACE,
    SECRET,
    Manifest,
    ObjectRef,
    owned_labels,
)
from fairlead_operator.ports import Key
from fairlead_operator.reconcile import link
from fairlead_operator.reconcile.lasting_rights import LastingRights
from fairlead_operator.reconcile.link import LinkReconciler
from memory_api import MemoryApi, MemoryCache, StandingClock

KEY = Key("Link", "shop", "east")
NOBODY = "http://127.0.0.1:1"
TOKEN = base64.b64encode(b"flt_token").decode()


def controlled_by(kind: str, uid: str) -> Manifest:
    """Return metadata of an object with an owner."""
    owner = {"apiVersion": "v1", "kind": kind, "name": "main", "uid": uid, "controller": True}
    return {"labels": owned_labels("main"), "ownerReferences": [owner]}


@pytest.mark.parametrize(
    ("metadata", "reason", "keys"),
    [
        (controlled_by("Cluster", "uid-main"), "ClusterNotReady", {"east.token": TOKEN}),
        ({"labels": owned_labels("main")}, "ClusterNotReady", {"east.token": TOKEN}),
        (controlled_by("Cluster", "uid-of-another-cluster"), "SecretNotOurs", {}),
        (controlled_by("ExternalSecret", "uid-of-a-program"), "SecretNotOurs", {}),
        ({"labels": owned_labels("other")}, "SecretNotOurs", {}),
        ({}, "SecretNotOurs", {}),
    ],
    ids=[
        "of the Cluster", "kept from an earlier Cluster", "of another Cluster", "of a program with the labels",
        "of a Cluster with another name", "of a user",
    ],
)  # fmt: skip
async def test_only_a_secret_of_the_cluster_gets_credentials(
    monkeypatch: pytest.MonkeyPatch, metadata: dict[str, Any], reason: str, keys: dict[str, str]
) -> None:
    """A Secret with the name for the credentials of links is changed only if the Cluster owns it."""
    monkeypatch.setattr(link, "REQUEST_TIMEOUT", "10ms")
    api = MemoryApi()
    api.put(NAMESPACE, "shop", "")
    api.put(CLUSTER, "main", spec={"brokers": [{"name": "a", "firstBrokerId": 0, "replicas": 1}]})
    api.put(SECRET, "east-link", data={"token": TOKEN})
    stored = api.put(SECRET, "main-link-credentials", metadata=metadata, data={})
    spec = {
        "clusterRef": {"name": "main"},
        "source": {"bootstrap": ["https://east.example:9520"], "credentialsSecretRef": {"name": "east-link"}},
        "topics": {"include": ["*"]},
    }
    ref = api.put(LINK, "east", metadata={"finalizers": [LINK_FINALIZER]}, spec=spec)
    rights = LastingRights(api, MemoryCache(api), "", structlog.get_logger())
    brokers = BrokerCalls(NOBODY)
    await LinkReconciler(api, MemoryCache(api), brokers, StandingClock(), rights).reconcile(KEY)

    assert ready(api, ref) == reason
    assert api.objects[stored]["data"] == keys


def ready(api: MemoryApi, ref: ObjectRef) -> str:
    """Return the reason of the Ready condition."""
    conditions = api.objects[ref]["status"]["conditions"]
    return str(next(each["reason"] for each in conditions if each["type"] == "Ready"))
