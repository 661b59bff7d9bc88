"""What the plans need is read out of objects of Kubernetes, however little of them is there."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead_operator.plan.observed import (
    BrokersAnswer,
    Observed,
    ObservedClaim,
    ObservedPod,
    ObservedSet,
    newest_image,
    observe_claim,
    observe_pod,
    observe_set,
)
from plan_kit import NOW, answer, gone_broker, pod, stateful_set

LABELS = {"fairlead.dev/pool": "a", "apps.kubernetes.io/pod-index": "3"}


def pod_object(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return the pod of broker 3."""
    known = {"name": "main-a-3", "uid": "u", "labels": LABELS, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**known, **metadata}, **({"status": status} if status is not None else {})}


def test_a_new_pod_is_neither_ready_nor_stuck() -> None:
    """It has no status yet, and no annotations."""
    seen = observe_pod(pod_object())

    assert seen == ObservedPod(name="main-a-3", uid="u", pool="a", broker=3, created="2026-01-01T00:00:00Z")


def test_everything_that_a_pod_says_is_read() -> None:
    """Fingerprints, wishes of people, readiness, and whether it goes."""
    annotations = {
        "fairlead.dev/pod-spec-hash": "s",
        "fairlead.dev/restart-config-hash": "c",
        "fairlead.dev/restart": "please",
        "fairlead.dev/delete-pod-and-claim": "true",
    }
    ready = {"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]}
    seen = observe_pod(pod_object(ready, annotations=annotations, deletionTimestamp="2026-01-01T00:00:00Z"))

    assert seen == ObservedPod(
        name="main-a-3",
        uid="u",
        pool="a",
        broker=3,
        created="2026-01-01T00:00:00Z",
        ready=True,
        terminating=True,
        pod_spec_hash="s",
        config_hash="c",
        restart_asked="please",
        new_disk_asked=True,
    )


def test_the_newest_pod_tells_what_runs() -> None:
    """Of etcd's pods too, whose StatefulSet may be away for a moment; other containers do not count."""
    old = pod_object() | {"spec": {"containers": [{"name": "broker", "image": "fairlead:1"}]}}
    members = [
        pod_object(creationTimestamp=created) | {"spec": {"containers": [{"name": "etcd", "image": image}]}}
        for created, image in (("2026-01-02T00:00:00Z", "etcd:2"), ("2026-01-01T00:00:00Z", "etcd:1"))
    ]
    seen = observe_pod(old)

    assert seen is not None
    assert seen.image == "fairlead:1"
    assert newest_image(members) == "etcd:2"
    assert newest_image([]) == ""


def test_a_pod_without_an_index_is_numbered_by_its_name() -> None:
    """Older releases of Kubernetes put no label; a pod of another name is no broker."""
    named = observe_pod(pod_object(labels={"fairlead.dev/pool": "a"}))

    assert named is not None
    assert named.broker == 3
    assert observe_pod(pod_object(name="shell", labels={"fairlead.dev/pool": "a"})) is None
    assert observe_pod(pod_object(labels={"apps.kubernetes.io/pod-index": "3"})) is None


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (
            {"containerStatuses": [{"name": "broker", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            "broker: ImagePullBackOff",
        ),
        (
            {
                "initContainerStatuses": [
                    {
                        "name": "first",
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                    }
                ]
            },
            "first: CrashLoopBackOff: back-off",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "failed: Evicted: disk"),
        ({"phase": "Failed"}, "failed: no reason given"),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "no node",
                    }
                ]
            },
            "Unschedulable: no node",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "broker", "state": {"waiting": {"reason": "ContainerCreating"}}}
                ]
            },
            None,
        ),
        (
            {
                "containerStatuses": [{"name": "broker"}],
                "conditions": [{"type": "PodScheduled", "status": "True"}],
            },
            None,
        ),
    ],
)
def test_a_pod_that_will_not_start_by_waiting_says_why(status: dict[str, Any], why: str | None) -> None:
    """What only needs time is not stuck."""
    seen = observe_pod(pod_object(status))

    assert seen is not None
    assert seen.stuck == why


def test_a_long_reason_is_cut() -> None:
    """The words of a runtime may fill pages."""
    seen = observe_pod(pod_object({"phase": "Failed", "message": "x" * 2000}))

    assert seen is not None
    assert seen.stuck is not None
    assert len(seen.stuck) == 500


def test_a_stateful_set_tells_its_brokers_and_its_template() -> None:
    """Ids, disks, image and fingerprints, and whether its controller has seen the newest."""
    claim_template = {
        "metadata": {"name": "data"},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}},
    }
    annotations = {"fairlead.dev/pod-spec-hash": "s", "fairlead.dev/restart-config-hash": "c"}
    containers = [{"name": "sidecar", "image": "other:1"}, {"name": "broker", "image": "fairlead:1"}]
    seen = observe_set(
        {
            "metadata": {"name": "main-a", "uid": "u", "generation": 3, "labels": {"fairlead.dev/pool": "a"}},
            "spec": {
                "replicas": 2,
                "ordinals": {"start": 100},
                "template": {"metadata": {"annotations": annotations}, "spec": {"containers": containers}},
                "volumeClaimTemplates": [{"metadata": {"name": "more"}}, claim_template],
            },
            "status": {"observedGeneration": 2},
        }
    )

    assert seen == ObservedSet(
        name="main-a",
        uid="u",
        pool="a",
        first_broker=100,
        replicas=2,
        settled=False,
        storage_size="5Gi",
        storage_class="fast",
        pod_spec_hash="s",
        config_hash="c",
        image="fairlead:1",
    )
    assert list(seen.brokers) == [100, 101]


def test_a_bare_stateful_set_can_be_read() -> None:
    """One that is going, of no pool, without a template of disks."""
    metadata = {"name": "main-etcd", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    seen = observe_set({"metadata": metadata, "spec": {}})

    assert (seen.pool, seen.replicas, seen.terminating, seen.storage_size) == ("", 1, True, "")


def test_a_claim_tells_sizes_and_what_it_waits_for() -> None:
    """A file system that grows at the next start, since when."""
    pending = {
        "type": "FileSystemResizePending",
        "status": "True",
        "lastTransitionTime": "2026-01-02T00:00:00Z",
    }
    resizing = {"type": "Resizing", "status": "True"}
    claim = {
        "metadata": {"name": "data-main-a-3", "uid": "u", "labels": {"fairlead.dev/pool": "a"}},
        "spec": {"resources": {"requests": {"storage": "5Gi"}}},
        "status": {"capacity": {"storage": "4Gi"}, "conditions": [resizing, pending]},
    }

    assert observe_claim(claim) == ObservedClaim(
        name="data-main-a-3",
        uid="u",
        pool="a",
        broker=3,
        requested="5Gi",
        capacity="4Gi",
        waits_for_restart_since="2026-01-02T00:00:00Z",
    )
    bare = observe_claim({"metadata": {"name": "data-x-0", "uid": "u"}, "spec": {}})
    assert bare is not None
    assert (bare.requested, bare.capacity, bare.waits_for_restart_since) == ("", "", "")
    assert observe_claim({"metadata": {"name": "scratch", "uid": "u"}, "spec": {}}) is None


def test_a_resize_that_is_over_or_never_dated_asks_for_no_restart() -> None:
    """A condition that is false, and one of which nobody says since when."""
    for said in ({"status": "False"}, {"status": "True"}):
        claim = {
            "metadata": {"name": "data-main-a-3", "uid": "u"},
            "spec": {},
            "status": {"conditions": [{"type": "FileSystemResizePending", **said}]},
        }
        seen = observe_claim(claim)

        assert seen is not None
        assert seen.waits_for_restart_since == ""


@pytest.mark.parametrize("name", ["data-main-a-3-copy", "data-main-a-3-1", "backup-1", "main-a-3"])
def test_a_copy_of_a_claim_is_nobodys_disk(name: str) -> None:
    """Whoever keeps a copy of a claim with all its labels would else lose it with the disk of another broker."""
    labels = {"fairlead.dev/cluster": "main", "fairlead.dev/pool": "a"}

    assert observe_claim({"metadata": {"name": name, "uid": "u", "labels": labels}, "spec": {}}) is None


def test_a_copy_of_a_pod_is_no_broker() -> None:
    """As one for debugging, which bears the labels of the broker that it was made from."""
    assert observe_pod(pod_object(name="main-a-3-copy")) is None
    assert observe_pod(pod_object(name="main-a-3-1")) is None


def test_things_are_found_by_pool_and_broker() -> None:
    """None where there is no such thing; a broker that is gone or unknown is not registered."""
    seen = Observed(now=NOW, pods=(pod(1),), sets=(stateful_set(1),))
    says: BrokersAnswer = answer([0, gone_broker(1)])

    assert seen.set_of("a") == stateful_set(1)
    assert seen.set_of("b") is None
    assert [says.registered(broker) for broker in (0, 1, 2)] == [True, False, False]
