"""The objects that belong to an etcd, among all objects with its labels."""

from __future__ import annotations

from typing import Any

import structlog

from fairlead_operator.etcd_members import EtcdMembersClient
from fairlead_operator.naming import ETCD_COMPONENT, ETCD_CONTAINER, Manifest, owned_labels
from fairlead_operator.reconcile.etcd import EtcdLook, EtcdStep
from memory_api import MemoryApi
from plan_kit import NOW
from render_kit import IMAGES, cluster_of


def an_object(name: str, **parts: Any) -> Manifest:
    """Return an object with the labels of etcd."""
    metadata = {"name": name, "uid": f"uid-{name}", "labels": owned_labels("main", ETCD_COMPONENT)}
    return {"metadata": {**metadata, **parts.pop("metadata", {})}, **parts}


def a_pod(name: str, *arguments: str, **metadata: Any) -> Manifest:
    """Return a pod that has not started."""
    container = {"name": ETCD_CONTAINER, **({"args": list(arguments)} if arguments else {})}
    return an_object(name, spec={"containers": [container]}, metadata=metadata)


def a_claim(name: str, member: str) -> Manifest:
    """Return a claim that has the id of a member."""
    return an_object(name, spec={}, metadata={"annotations": {"fairlead.dev/etcd-member": member}})


async def look_at(pods: list[Manifest], claims: list[Manifest]) -> EtcdLook:
    """Return the observations of an etcd whose members do not answer."""
    step = EtcdStep(
        MemoryApi(),
        EtcdMembersClient(),
        url="http://127.0.0.1:1",
        tls_url="https://127.0.0.1:1",
        log=structlog.get_logger(),
    )
    return await step.look(cluster_of(), IMAGES, sets=[], pods=pods, claims=claims, refusals={}, now=NOW)


async def test_copies_of_pods_and_claims_are_none_of_etcd() -> None:
    """Copies of claims and pods with the labels of etcd do not count as its members."""
    pods, claims = [a_pod("main-etcd-0")], [a_claim(f"data-main-etcd-{n}", f"{n + 10:x}") for n in range(3)]
    copies = [a_claim(f"data-main-etcd-0-{ending}", "a") for ending in ("copy", "20261123", "1")]
    look = await look_at([*pods, a_pod("main-etcd-0-copy"), a_pod("copy-7")], [*claims, *copies])

    assert look.observed == (await look_at(pods, claims)).observed
    assert sorted(look.observed.claims) == [0, 1, 2]
    assert look.plan.inputs is not None
    assert look.plan.inputs.replicas == 3


async def test_sizes_of_volumes_and_quotas_of_pods_are_read() -> None:
    """The sizes of volumes, the quotas of pods and the time of a pending resize are read, with 0 or empty defaults."""
    pod = a_pod(
        "main-etcd-0", "--name=x", "--quota-backend-bytes=77", creationTimestamp="2026-01-01T00:00:00Z"
    )
    waits = {
        "type": "FileSystemResizePending",
        "status": "True",
        "lastTransitionTime": "2026-01-02T00:00:00Z",
    }
    claim = a_claim("data-main-etcd-0", "a") | {
        "spec": {"resources": {"requests": {"storage": "4Ki"}}},
        "status": {"capacity": {"storage": "2Ki"}, "conditions": [waits]},
    }
    look = await look_at([pod, a_pod("main-etcd-1")], [claim, a_claim("data-main-etcd-1", "b")])
    told, bare = look.observed.pods[0], look.observed.pods[1]
    grows, unknown = look.observed.claims[0], look.observed.claims[1]

    assert (told.quota_bytes, told.created) == (77, "2026-01-01T00:00:00Z")
    assert (bare.quota_bytes, bare.created) == (0, "")
    assert (grows.size_bytes, grows.growing) == (4096, True)
    assert grows.waits_for_restart_since == "2026-01-02T00:00:00Z"
    assert (unknown.size_bytes, unknown.growing, unknown.waits_for_restart_since) == (0, False, "")
