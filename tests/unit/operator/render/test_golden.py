from __future__ import annotations

import copy

import pytest

import render_kit
from fairlead_operator.naming import CLUSTER_LABEL, FIELD_MANAGER, MANAGED_BY_LABEL, Manifest
from fairlead_operator.render import render_cluster


@pytest.mark.parametrize("name", ["managed.yaml", "outside.yaml"])
def test_what_is_drawn_is_what_the_golden_file_says(name: str) -> None:
    """The rendered objects equal the golden files; `tests/plugins/render_kit.py` updates the files."""
    drawn = render_kit.as_yaml(render_kit.golden_cases()[name])

    assert drawn == (render_kit.GOLDEN / name).read_text()


def test_drawing_twice_gives_the_same_whatever_the_order_of_words() -> None:
    """The order of keys in a Cluster does not change the rendered objects."""
    words = {"segment.bytes": "2000000", "num.io.threads": "4", "max.connections": "10"}
    backwards = dict(reversed(words.items()))
    there = render_kit.cluster_of(config=words, listeners={"data": {"annotations": {"a": "1", "b": "2"}}})
    back = render_kit.cluster_of(config=backwards, listeners={"data": {"annotations": {"b": "2", "a": "1"}}})

    assert render_kit.as_yaml(render_cluster(there, render_kit.inputs_of())) == render_kit.as_yaml(
        render_cluster(back, render_kit.inputs_of())
    )


def test_every_object_is_marked_and_owned() -> None:
    """Every object has the labels of its Cluster and, except for volume claims, is owned by the Cluster."""
    for manifest in render_kit.drawn(render_kit.cluster_of()).values():
        metadata = manifest["metadata"]
        owners = [owner["uid"] for owner in metadata["ownerReferences"]]

        assert metadata["labels"][CLUSTER_LABEL] == "main"
        assert metadata["labels"][MANAGED_BY_LABEL] == FIELD_MANAGER
        assert owners == ["cluster-uid"]


def test_with_retain_objects_have_no_owner() -> None:
    """Objects of a Cluster with the policy `Retain` have no owner and are not deleted with it."""
    objects = render_kit.drawn(render_kit.cluster_of(deletionPolicy="Retain"))

    assert all("ownerReferences" not in each["metadata"] for each in objects.values())


def test_selectors_find_the_pods_that_they_mean() -> None:
    """Every selector selects pods of its own component, and each StatefulSet selects its own pods."""
    pools = [render_kit.POOL, {**render_kit.POOL, "name": "b", "firstBrokerId": 100}]
    objects = render_kit.drawn(render_kit.cluster_of(brokers=pools))
    pods = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for name, each in objects.items()
        if each["kind"] == "StatefulSet"
    }

    def selected(selector: Manifest) -> set[str]:
        return {name for name, labels in pods.items() if selector.items() <= labels.items()}

    brokers, members = {"StatefulSet/main-a", "StatefulSet/main-b"}, {"StatefulSet/main-etcd"}
    for name in pods:
        assert selected(objects[name]["spec"]["selector"]["matchLabels"]) == {name}
        [claim] = objects[name]["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["labels"] == objects[name]["metadata"]["labels"]
    assert selected(objects["Service/main-brokers"]["spec"]["selector"]) == brokers
    assert selected(objects["Service/main-bootstrap"]["spec"]["selector"]) == brokers
    assert selected(objects["Service/main-etcd"]["spec"]["selector"]) == members
    assert selected(objects["Service/main-etcd-peers"]["spec"]["selector"]) == members
    for name, expected in (("main-brokers", brokers), ("main-etcd", members)):
        budget = objects[f"PodDisruptionBudget/{name}"]["spec"]["selector"]["matchLabels"]
        policy = objects[f"NetworkPolicy/{name}"]["spec"]["podSelector"]["matchLabels"]
        assert selected(budget) == selected(policy) == expected
    monitored = objects["PodMonitor/main"]["spec"]["selector"]["matchLabels"]
    assert selected(monitored) == brokers | members


def test_pods_come_after_what_they_need() -> None:
    """Accounts, configuration, network policies and Services are rendered before the StatefulSets."""
    kinds = [each["kind"] for each in render_cluster(render_kit.cluster_of(), render_kit.inputs_of())]

    assert kinds.index("StatefulSet") > max(
        kinds.index(kind) for kind in ("ServiceAccount", "ConfigMap", "NetworkPolicy", "Service")
    )


def test_drawing_changes_neither_the_cluster_nor_an_earlier_drawing() -> None:
    """The rendered objects are copies: changing them does not affect the Cluster."""
    template = {"spec": {"containers": [{"name": "sidecar", "image": "x"}], "nodeSelector": {"disk": "ssd"}}}
    cluster = render_kit.cluster_of(brokers=[{**render_kit.POOL, "template": template}])
    before = copy.deepcopy(cluster)
    first = render_kit.drawn(cluster)
    first["StatefulSet/main-a"]["spec"]["template"]["spec"]["nodeSelector"]["disk"] = "tape"

    assert cluster == before
