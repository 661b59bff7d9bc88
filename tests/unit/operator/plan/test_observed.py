"""The observations that plans need, read from Kubernetes objects in which any part may be missing."""

from __future__ import annotations

from datetime import timedelta
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
    observe_console,
    observe_pod,
    observe_refusals,
    observe_set,
    pods_expected,
)
from plan_kit import NOW, answer, gone_broker, pod, stateful_set

LABELS = {"fairlead.dev/pool": "a", "apps.kubernetes.io/pod-index": "3"}


def pod_object(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return the pod of broker 3."""
    known = {"name": "main-a-3", "uid": "u", "labels": LABELS, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**known, **metadata}, **({"status": status} if status is not None else {})}


@pytest.mark.parametrize(
    ("status", "minutes", "is_faulty"),
    [("False", 2, True), ("False", 1, False), ("True", 60, False), (None, 60, False)],
)
def test_a_console_is_faulty_after_two_minutes_without_a_pod(
    status: str | None, minutes: int, *, is_faulty: bool
) -> None:
    """A Deployment without a ready pod is a fault after two minutes; a new Deployment has no conditions yet."""
    since = (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {"type": "Progressing", "status": "False", "lastTransitionTime": since},
        {"type": "Available", "status": status, "lastTransitionTime": since},
    ]
    fault = observe_console({} if status is None else {"status": {"conditions": conditions}}, NOW)

    assert bool(fault) is is_faulty
    assert not is_faulty or since in fault


def test_a_new_pod_is_neither_ready_nor_stuck() -> None:
    """A new pod without a status is neither ready nor stuck."""
    seen = observe_pod(pod_object())

    assert seen == ObservedPod(name="main-a-3", uid="u", pool="a", broker=3, created="2026-01-01T00:00:00Z")


def test_everything_that_a_pod_says_is_read() -> None:
    """Fingerprints, readiness, deletion and requests (annotations) are read from a pod."""
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


def test_the_newest_pod_gives_the_running_image() -> None:
    """The newest pod determines the running image of brokers and etcd, and other containers are ignored."""
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
    """A pod without the index label gets its broker id from its name; a pod whose name has no id is not a broker."""
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
    """A pod counts as stuck, with a reason, only if waiting cannot help."""
    seen = observe_pod(pod_object(status))

    assert seen is not None
    assert seen.stuck == why


def test_a_long_reason_is_cut() -> None:
    """The reason of a stuck pod is truncated to 500 characters."""
    seen = observe_pod(pod_object({"phase": "Failed", "message": "x" * 2000}))

    assert seen is not None
    assert seen.stuck is not None
    assert len(seen.stuck) == 500


def test_the_brokers_and_template_of_a_stateful_set_are_read() -> None:
    """The broker ids, disk, image, fingerprints and observed generation of a StatefulSet are read."""
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
    """A StatefulSet that has neither a pool nor a claim template can be read."""
    metadata = {"name": "main-etcd", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    seen = observe_set({"metadata": metadata, "spec": {}})

    assert (seen.pool, seen.replicas, seen.terminating, seen.storage_size) == ("", 1, True, "")


def test_the_sizes_of_a_claim_are_read() -> None:
    """The sizes of a claim are read, and since when its file system has waited for a restart of the pod."""
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
    """A resize condition that is false or has no time does not request a restart."""
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
def test_a_copy_of_a_claim_is_no_disk_of_a_broker(name: str) -> None:
    """A copy of a claim with all its labels is not mistaken for the disk of a broker."""
    labels = {"fairlead.dev/cluster": "main", "fairlead.dev/pool": "a"}

    assert observe_claim({"metadata": {"name": name, "uid": "u", "labels": labels}, "spec": {}}) is None


def test_a_copy_of_a_pod_is_no_broker() -> None:
    """A copy of a pod with the labels of a broker is not mistaken for a broker."""
    assert observe_pod(pod_object(name="main-a-3-copy")) is None
    assert observe_pod(pod_object(name="main-a-3-1")) is None


def test_things_are_found_by_pool_and_broker() -> None:
    """Observed objects are found by pool and broker; a broker that is gone or unknown counts as not registered."""
    seen = Observed(now=NOW, pods=(pod(1),), sets=(stateful_set(1),))
    says: BrokersAnswer = answer([0, gone_broker(1)])

    assert seen.set_of("a") == stateful_set(1)
    assert seen.set_of("b") is None
    assert [says.registered(broker) for broker in (0, 1, 2)] == [True, False, False]


QUOTA = 'pods "main-a-1" is forbidden: exceeded quota: small'


def attempt(second: int, what: str, *, succeeds: bool = False, combined: bool = False) -> dict[str, Any]:
    """Return the Event of a StatefulSet controller that tried to create a pod or claim."""
    result = "successful" if succeeds else f"failed error: {QUOTA}"
    note = f"create {what} in StatefulSet main-a {result}"
    return {
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "reason": "SuccessfulCreate" if succeeds else "FailedCreate",
        "note": f"(combined from similar events): {note}" if combined else note,
        "deprecatedLastTimestamp": f"2026-01-01T00:00:{second:02}Z",
    }


def test_pods_that_a_set_should_have_are_named() -> None:
    """The expected pods of a StatefulSet begin with its first ordinal.

    A StatefulSet without a number of replicas has one pod.
    """
    metadata = {"name": "main-a"}

    assert pods_expected({"metadata": metadata, "spec": {}}) == {0: "main-a-0"}
    assert pods_expected({"metadata": metadata, "spec": {"replicas": 2, "ordinals": {"start": 7}}}) == {
        7: "main-a-7",
        8: "main-a-8",
    }


@pytest.mark.parametrize("what", ["Pod main-a-1", "Claim data-main-a-1 Pod main-a-1"])
@pytest.mark.parametrize("combined", [False, True])
def test_the_refusal_of_a_missing_pod_is_read_out_of_events(what: str, *, combined: bool) -> None:
    """The refusal of a missing pod or its claim is read from Events, without Events on pods with other names."""
    claimed = attempt(5, "Claim data-main-a-1 Pod main-a-1", succeeds=True)
    events = [claimed, attempt(5, what, combined=combined), attempt(6, "Pod main-a-11", succeeds=True)]

    assert observe_refusals({1: "main-a-1", 2: "main-a-2"}, events) == {1: QUOTA}


def test_a_refusal_is_over_when_a_later_attempt_succeeded() -> None:
    """The refusal of a pod counts until a later attempt has created the pod, not only its claim."""
    failed, made = attempt(3, "Pod main-a-1"), attempt(9, "Pod main-a-1", succeeds=True)
    series = {**attempt(1, "Pod main-a-1"), "series": {"lastObservedTime": "2026-01-01T00:00:10.000001Z"}}
    missing = {1: "main-a-1"}

    assert observe_refusals(missing, [made, failed]) == {}
    assert observe_refusals(missing, [made, series]) == {1: QUOTA}
    assert observe_refusals(missing, [{"metadata": {}, "reason": "FailedCreate"}]) == {}


def test_missing_pods_are_counted_over_all_sets() -> None:
    """Missing pods are counted across all StatefulSets except those being deleted."""
    sets = (stateful_set(2), stateful_set(1, name="main-b", pool="b", terminating=True))

    assert Observed(now=NOW, sets=sets, pods=(pod(0),)).lacks_pods
    assert not Observed(now=NOW, sets=sets, pods=(pod(0), pod(1))).lacks_pods
