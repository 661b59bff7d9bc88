"""Comparison of a stored object with the manifest that would be applied, and the differences that count."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fairlead_operator.api_server.applying import (
    APPLIED_HASH_ANNOTATION,
    differs_in,
    hash_of,
    marked,
    same_status,
    stands,
)

Manifest = dict[str, Any]

WANTED: Manifest = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {
        "name": "main-a",
        "labels": {"app": "x"},
        "ownerReferences": [{"uid": "1", "kind": "Cluster"}],
    },
    "spec": {
        "replicas": 3,
        "template": {
            "spec": {
                "automountServiceAccountToken": False,
                "containers": [
                    {
                        "name": "broker",
                        "env": [{"name": "A", "value": "1"}],
                        "ports": [{"containerPort": 9520}],
                        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}},
                        "args": ["broker", "start"],
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
                "tolerations": [{"key": "a"}],
            }
        },
    },
}


def as_stored(wanted: Manifest) -> Manifest:
    """Return the object as the API server stores it: with defaults, short quantities, and without empty values."""
    live = copy.deepcopy(wanted)
    live["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 1}
    pod = live["spec"]["template"]["spec"]
    del pod["automountServiceAccountToken"]
    pod["dnsPolicy"] = "ClusterFirst"
    container = pod["containers"][0]
    container["ports"][0]["protocol"] = "TCP"
    container["resources"]["requests"] = {"cpu": "1", "memory": "1Gi"}
    container["imagePullPolicy"] = "IfNotPresent"
    live["status"] = {"replicas": 3}
    return live


def test_a_server_s_own_additions_are_no_difference() -> None:
    """Defaults, canonical quantities, omitted empty values and fields of other managers do not count as differences."""
    live = as_stored(marked(WANTED))
    pod = live["spec"]["template"]["spec"]
    pod["containers"].insert(0, {"name": "sidecar", "image": "foreign"})
    pod["containers"][1]["env"].append({"name": "FOREIGN", "value": "2"})
    live["metadata"]["labels"]["foreign"] = "yes"
    live["metadata"]["annotations"]["foreign"] = "yes"

    assert stands(marked(WANTED), live)
    assert differs_in(marked(WANTED), live) == ""


CHANGES: dict[str, Any] = {
    "spec.replicas": lambda spec: spec.update(replicas=2),
    "spec.template.spec.containers.env.value": lambda spec: spec["template"]["spec"]["containers"][0]["env"][
        0
    ].update(value="2"),
    "spec.template.spec.containers.ports": lambda spec: spec["template"]["spec"]["containers"][0].update(
        ports=[]
    ),
    "spec.template.spec.containers.resources.requests.cpu": lambda spec: spec["template"]["spec"][
        "containers"
    ][0]["resources"]["requests"].update(cpu="2"),
    "spec.template.spec.containers.args": lambda spec: spec["template"]["spec"]["containers"][0][
        "args"
    ].append("x"),
    "spec.template.spec.tolerations": lambda spec: spec["template"]["spec"]["tolerations"].append(
        {"key": "b"}
    ),
    "spec.template.spec.containers": lambda spec: spec["template"]["spec"].update(containers=[]),
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_changed_field_of_ours_is_seen(path: str) -> None:
    """An operator's field is reported if its value was changed or removed, or if its list got another entry."""
    live = as_stored(marked(WANTED))
    CHANGES[path](live["spec"])

    assert not stands(marked(WANTED), live)
    assert path.startswith(differs_in(marked(WANTED), live) or "nothing")


def test_a_field_taken_out_of_the_manifest_is_seen() -> None:
    """A field that was removed from the manifest changes the hash, although all stored values match the manifest."""
    live = as_stored(marked(WANTED))
    less = copy.deepcopy(WANTED)
    del less["metadata"]["labels"]

    assert not stands(marked(less), live)
    assert hash_of(less) != hash_of(WANTED)


def test_the_mark_keeps_other_annotations() -> None:
    """The hash annotation is added to the existing annotations, and the given manifest is not modified."""
    before = copy.deepcopy(WANTED)
    wanted = {**WANTED, "metadata": {**WANTED["metadata"], "annotations": {"ours": "1"}}}
    annotations = marked(wanted)["metadata"]["annotations"]

    assert annotations == {"ours": "1", APPLIED_HASH_ANNOTATION: hash_of(wanted)}
    assert before == WANTED


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("1", 1, True),
        ("0.5", "500m", True),
        ("1Gi", "1024Mi", True),
        ("1e3", "1k", True),
        ("1Gi", "1G", False),
        ("x", "y", False),
    ],
)
def test_quantities_are_compared_as_numbers(ours: Any, theirs: Any, same: bool) -> None:
    """Two notations of the same quantity are equal in fields that contain quantities, and differ in other fields."""
    wanted, live = ({"spec": {"resources": {"limits": {"x": value}}}} for value in (ours, theirs))

    assert stands(wanted, live) is same
    assert not stands({"spec": {"env": "1Gi"}}, {"spec": {"env": "1024Mi"}})


def test_ports_of_a_policy_are_ours_as_a_whole() -> None:
    """An extra port in a NetworkPolicy counts as a difference, and an extra port in a Service does not."""
    policy = {"spec": {"ingress": [{"ports": [{"port": 9520}]}]}}
    widened = {
        "spec": {"ingress": [{"ports": [{"port": 9520, "protocol": "TCP"}, {"port": 22, "protocol": "TCP"}]}]}
    }
    service = {"spec": {"ports": [{"port": 9520}]}}
    more = {"spec": {"ports": [{"port": 80, "protocol": "TCP"}, {"port": 9520, "protocol": "TCP"}]}}

    assert not stands(policy, widened)
    assert stands(service, more)


def test_selectors_are_ours_as_a_whole() -> None:
    """An extra label in a selector counts as a difference, and an empty selector part does not."""
    service = {"spec": {"selector": {"app": "x"}}}
    policy = {"spec": {"podSelector": {"matchLabels": {"app": "x"}}}}

    assert not stands(service, {"spec": {"selector": {"app": "x", "b": "z"}}})
    assert not stands(policy, {"spec": {"podSelector": {"matchLabels": {"app": "x", "b": "z"}}}})
    assert stands(policy, {"spec": {"podSelector": {"matchLabels": {"app": "x"}, "matchExpressions": []}}})


def test_statuses_differ_by_what_they_say() -> None:
    """Statuses that differ only in null or empty values are the same; a status with an extra condition differs."""
    ready = {"type": "Ready", "status": "True"}

    assert same_status(
        {"a": None, "b": [], "conditions": [ready]}, {"conditions": [{**ready, "message": ""}]}
    )
    assert same_status({}, None)
    assert not same_status(
        {"conditions": [ready]}, {"conditions": [ready, {"type": "Old", "status": "True"}]}
    )
    assert not same_status({"count": 0}, {})
