from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import render_kit
from fairlead_operator.naming import Manifest
from fairlead_operator.render import EtcdInputs, Images, RenderInputs, TemplateRefused
from fairlead_operator.render.merge import strategic_merge
from refusals import raises

HASH = "fairlead.dev/pod-spec-hash"
RESTART_HASH = "fairlead.dev/restart-config-hash"


def pool_with(template: dict[str, Any], **others: object) -> dict[str, Manifest]:
    """Render a Cluster whose pool has the given template."""
    return render_kit.drawn(
        render_kit.cluster_of(brokers=[{**render_kit.POOL, "template": template, **others}])
    )


def template_of(objects: dict[str, Manifest], name: str = "main-a") -> Manifest:
    """Return the pod template of a StatefulSet."""
    template: Manifest = objects[f"StatefulSet/{name}"]["spec"]["template"]
    return template


def test_a_users_template_is_laid_over_ours() -> None:
    """A user's template is merged into the operator's: maps by key, lists by name; unknown fields are kept."""
    spec = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "x", "operator": "Exists"}],
        "securityContext": {"fsGroupChangePolicy": "Always"},
        "containers": [
            {
                "name": "broker",
                "env": [{"name": "FAIRLEAD_LOG_LEVEL", "value": "debug"}],
                "volumeMounts": [{"name": "certificates", "mountPath": "/certificates"}],
                "ports": [{"name": "debug", "containerPort": 5678}],
                "livenessProbe": {"failureThreshold": 20},
            },
            {"name": "sidecar", "image": "sidecar:1"},
        ],
        "volumes": [
            {"name": "certificates", "secret": {"secretName": "certificates"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
        ],
    }
    objects = pool_with({"metadata": {"labels": {"team": "x"}, "annotations": {"note": "y"}}, "spec": spec})
    pod, container = template_of(objects), render_kit.container_of(objects["StatefulSet/main-a"])

    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert pod["spec"]["tolerations"] == spec["tolerations"]
    assert pod["spec"]["securityContext"]["fsGroupChangePolicy"] == "Always"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert [each["name"] for each in pod["spec"]["containers"]] == ["broker", "sidecar"]
    assert container["env"][-1] == {"name": "FAIRLEAD_LOG_LEVEL", "value": "debug"}
    assert container["livenessProbe"]["failureThreshold"] == 20
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert [port["containerPort"] for port in container["ports"]] == [9520, 9521, 9522, 9523, 5678]
    assert "/certificates" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert {each["name"]: each for each in pod["spec"]["volumes"]}["tmp"]["emptyDir"] == {"sizeLimit": "1Gi"}
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["annotations"]["note"] == "y"


def test_what_a_pod_is_known_by_stays() -> None:
    """A template cannot change the labels, hashes, identity, data mount and arguments of a broker."""
    spec = {
        "containers": [
            {
                "name": "broker",
                "image": "other:2",
                "args": ["sleep"],
                "env": [{"name": "FAIRLEAD_ID", "value": "7"}],
                "ports": [{"name": "http", "containerPort": 80}, {"name": "x", "containerPort": 9520}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/var/lib/fairlead"}],
            }
        ],
        "volumes": [
            {"name": "data", "emptyDir": {}},
            {"name": "config", "configMap": {"name": "other"}},
        ],
    }
    metadata = {
        "labels": {"fairlead.dev/cluster": "other", "fairlead.dev/new": "x"},
        "annotations": {HASH: "fixed"},
    }
    laid = pool_with({"metadata": metadata, "spec": spec})
    plain = render_kit.drawn(render_kit.cluster_of())
    container, own = (render_kit.container_of(each["StatefulSet/main-a"]) for each in (laid, plain))

    assert template_of(laid)["metadata"]["labels"] == template_of(plain)["metadata"]["labels"]
    assert template_of(laid)["metadata"]["annotations"][HASH] != "fixed"
    for part in ("image", "args", "env", "ports", "volumeMounts"):
        assert container[part] == own[part]
    assert template_of(laid)["spec"]["volumes"] == template_of(plain)["spec"]["volumes"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": {"broker": {}}}, "spec.containers"),
        ({"containers": None}, "spec.containers"),
        ({"containers": [{"image": "x"}]}, "spec.containers[0]"),
        ({"containers": [{"name": "broker", "env": ["A=B"]}]}, "spec.containers[0].env[0]"),
        ({"volumes": [{"name": None}]}, "spec.volumes[0]"),
        ({"volumes": [{"name": ["a"]}]}, "spec.volumes[0].name"),
        (
            {"containers": [{"name": "broker", "ports": [{"containerPort": 1, "name": {}}]}]},
            "spec.containers[0].ports[0].name",
        ),
        (
            {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": []}]},
            "spec.topologySpreadConstraints[0].whenUnsatisfiable",
        ),
        ({"initContainers": [{"name": "a", "volumeMounts": [{}]}]}, "spec.initContainers[0].volumeMounts[0]"),
        ({"strange": {"volumes": 7}}, "spec.strange.volumes"),
    ],
)
def test_a_template_without_form_is_refused_by_its_field(spec: dict[str, Any], field: str) -> None:
    """A template that cannot be merged is refused, and the error contains the path of the wrong field."""
    with raises(TemplateRefused, field):
        pool_with({"spec": spec})


def test_a_null_takes_a_value_away() -> None:
    """A null in a template removes a value, such as a probe or its handler."""
    probe = {"httpGet": None, "tcpSocket": {"port": 9520}}
    objects = pool_with(
        {
            "spec": {
                "topologySpreadConstraints": None,
                "containers": [{"name": "broker", "readinessProbe": probe}],
            }
        }
    )
    drawn = render_kit.container_of(objects["StatefulSet/main-a"])["readinessProbe"]

    assert "topologySpreadConstraints" not in template_of(objects)["spec"]
    assert "httpGet" not in drawn
    assert drawn["tcpSocket"] == {"port": 9520}


JSON = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=10,
)
MAPS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


@given(MAPS, MAPS)
def test_the_upper_map_wins_wherever_it_speaks(base: dict[str, Any], over: dict[str, Any]) -> None:
    """Values of the second map take precedence, merging is idempotent, and the result has the keys of both maps."""
    merged = strategic_merge(base, over)

    assert strategic_merge(base, {}) == base
    assert strategic_merge(merged, over) == merged
    assert set(merged) == set(base) | set(over)
    for key, value in over.items():
        if not isinstance(value, dict):
            assert merged[key] == value


def test_lists_are_merged_by_what_names_their_entries() -> None:
    """Ports are merged by number and protocol, by default TCP, and a list without merge keys is replaced."""
    base = {"ports": [{"containerPort": 1, "name": "a"}], "args": ["x"]}
    over = {
        "ports": [
            {"containerPort": 1, "protocol": "TCP", "hostPort": 2},
            {"containerPort": 1, "protocol": "UDP"},
        ],
        "args": ["y"],
    }
    merged = strategic_merge(base, over)

    assert merged["ports"] == [
        {"containerPort": 1, "name": "a", "protocol": "TCP", "hostPort": 2},
        {"containerPort": 1, "protocol": "UDP"},
    ]
    assert merged["args"] == ["y"]
    assert strategic_merge({"a": 1}, {"a": None, "b": {"c": None}}) == {"b": {}}
    assert strategic_merge({"ports": "none"}, over)["ports"] == over["ports"]


def test_containers_request_something_unless_the_user_says_otherwise() -> None:
    """Resources in the spec, even empty ones, or in the template replace the default requests of brokers and etcd."""

    def requested(spec: dict[str, Any], template: list[dict[str, Any]] | None = None) -> list[object]:
        given = {**spec, "template": {"spec": {"containers": template}}} if template else spec
        objects = render_kit.drawn(
            render_kit.cluster_of(
                brokers=[{**render_kit.POOL, **given}], etcd={"managed": {"replicas": 3, **given}}
            )
        )
        return [
            render_kit.container_of(objects[f"StatefulSet/main-{name}"], container).get("resources")
            for name, container in (("a", "broker"), ("etcd", "etcd"))
        ]

    limits = {"limits": {"memory": "100Mi"}}
    own = [{"name": name, "resources": limits} for name in ("broker", "etcd")]
    defaults = [
        {"requests": {"cpu": "250m", "memory": "512Mi"}},
        {"requests": {"cpu": "100m", "memory": "128Mi"}},
    ]

    assert requested({}) == defaults
    assert requested({}, [{"name": "sidecar", "image": "x", "resources": limits}]) == defaults
    assert requested({"resources": limits}) == [limits, limits]
    assert requested({"resources": {}}) == [None, None]
    assert requested({}, own) == [limits, limits]


def hashes(inputs: RenderInputs | None = None, **spec: object) -> tuple[str, str]:
    """Return the pod hash and the restart hash of pool `a`."""
    annotations = template_of(render_kit.drawn(render_kit.cluster_of(**spec), inputs))["metadata"][
        "annotations"
    ]
    return annotations[HASH], annotations[RESTART_HASH]


def test_what_a_user_says_about_pods_changes_their_hash() -> None:
    """A new image, resources, template, address or external etcd changes the pod hash, but not the restart hash."""
    external = {"external": {"endpoints": ["http://e:2379"]}}
    changed = [
        hashes(render_kit.inputs_of(images=Images("other:2", "e"))),
        hashes(brokers=[{**render_kit.POOL, "resources": {"limits": {"memory": "1Gi"}}}]),
        hashes(brokers=[{**render_kit.POOL, "template": {"metadata": {"labels": {"a": "b"}}}}]),
        hashes(listeners={"data": {"advertisedHost": "b-{id}.example.com"}}),
        hashes(render_kit.inputs_of(etcd=None), etcd=external),
    ]

    assert len({pod for pod, _ in [hashes(), *changed]}) == len(changed) + 1
    assert {restart for _, restart in changed} == {hashes()[1]}


def test_what_needs_no_restart_changes_no_hash() -> None:
    """Changes that need no restart leave the hashes of the pods unchanged."""
    same = [
        hashes(brokers=[{**render_kit.POOL, "replicas": 5, "storage": {"size": "20Gi"}}]),
        hashes(render_kit.inputs_of(etcd=EtcdInputs(5, "a=http://b:1")), etcd={"managed": {"replicas": 5}}),
        hashes(config={"retention.ms": "5"}),
        hashes(brokers=[{**render_kit.POOL, "template": {"metadata": {}, "spec": {}}, "resources": {}}]),
        hashes(render_kit.inputs_of(advertised={0: "192.0.2.1:9520"})),
        hashes(networkPolicy={"enabled": False}),
    ]

    assert set(same[:3] + same[4:]) == {hashes()}
    assert same[3][1] == hashes()[1]


def test_configuration_of_the_start_changes_its_own_hash() -> None:
    """A configuration key that is read at startup changes the restart hash, but not the pod hash."""
    pod, restart = hashes(config={"num.io.threads": "8"})

    assert pod == hashes()[0]
    assert restart != hashes()[1]
