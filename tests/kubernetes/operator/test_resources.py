from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.etcd_backup import EtcdBackup
from fairlead_api.resources.link import Link
from fairlead_api.resources.rebalance import Rebalance
from fairlead_api.resources.topic import Topic
from fairlead_api.resources.user import User
from fairlead_operator.schema.definitions import DEFINITIONS, EPOCH, Definition
from kube_client import KubeClient, Manifest, Refused
from resource_cases import SAMPLES, Case, cases, every_field, object_of, words_of

if TYPE_CHECKING:
    from kubernetes_under_test import Kubernetes

STRICT = {"fieldValidation": "Strict"}
MODELS: dict[str, type[Cluster | Topic | User | Rebalance | EtcdBackup | Link]] = {
    each.__name__: each for each in (Cluster, Topic, User, Rebalance, EtcdBackup, Link)
}
PLURALS = {str(definition.kind): definition.plural for definition in DEFINITIONS}


@pytest.fixture(scope="session")
def api(kubernetes: Kubernetes) -> KubeClient:
    """Return a client of an API server with the definitions."""
    client = kubernetes.api
    for definition in DEFINITIONS:
        client.apply(definition.text())
        client.wait(f"crd/{definition.name}", None, is_established)
    return client


@pytest.fixture(scope="module")
def shop(kubernetes: Kubernetes) -> str:
    """Return a namespace for the cases, which use dry runs or remove their objects."""
    return kubernetes.namespace()


def is_established(definition: Manifest | None) -> bool:
    """Return whether the API server serves the kinds of a definition."""
    return definition is not None and truths(definition).get("Established") == "True"


def truths(definition: Manifest) -> dict[str, str]:
    """Return the statuses of an object's conditions by type."""
    return {each["type"]: each["status"] for each in definition.get("status", {}).get("conditions") or ()}


def folder(kind: str, namespace: str, name: str = "") -> str:
    """Return the path of a kind's objects, or of one object."""
    return f"apis/fairlead.dev/v1alpha1/namespaces/{namespace}/{PLURALS[kind]}" + (f"/{name}" if name else "")


def made(api: KubeClient, namespace: str, manifest: Manifest) -> Manifest:
    """Create an object with its status, and return the stored object."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    stored = api.request("POST", folder(kind, namespace), manifest, query=STRICT)
    if "status" in manifest:
        written = {**stored, "status": manifest["status"]}
        api.request("PUT", f"{folder(kind, namespace, name)}/status", written, query=STRICT)
    return api.request("GET", folder(kind, namespace, name))


def answer_to(api: KubeClient, method: str, path: str, manifest: Manifest) -> str:
    """Return the refusal of a manifest in a dry run, or an empty text."""
    try:
        api.request(method, path, manifest, query={"dryRun": "All", **STRICT})
    except Refused as refusal:
        return words_of(refusal.message)
    return ""


def ids(case: Case) -> str:
    """Return the id of a case."""
    return f"{case.kind}: {case.says}"


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each.plural)
def test_a_definition_is_served_and_structural(api: KubeClient, definition: Definition) -> None:
    """A definition is accepted by the API server: names accepted, established, no violation."""
    found = truths(api.wait(f"crd/{definition.name}", None, is_established))

    assert found == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("case", [case for kind in SAMPLES for case in cases(kind, "created")], ids=ids)
def test_a_new_resource_is_taken_or_refused_with_the_exact_words(
    api: KubeClient, shop: str, case: Case
) -> None:
    """A new resource is accepted, or refused with the exact text, which is part of the contract."""
    assert answer_to(api, "POST", folder(case.kind, shop), case.manifest()) == case.refused


@pytest.mark.parametrize("case", [case for kind in SAMPLES for case in cases(kind, "changed")], ids=ids)
def test_a_change_is_taken_or_refused_with_the_exact_words(api: KubeClient, shop: str, case: Case) -> None:
    """A change is accepted, or refused with the exact text, before an irreversible change is stored."""
    stored = made(api, shop, {**case.stored(), **({"status": case.status} if case.status else {})})
    path = folder(case.kind, shop, case.name)
    changed = {**case.manifest(), "metadata": stored["metadata"]}
    for name in case.before.keys() - case.spec.keys():
        changed["spec"][name] = stored["spec"][name]
    try:
        answer = answer_to(api, "PUT", path, changed)
    finally:
        api.request("DELETE", path)

    assert answer == case.refused


def test_the_tables_are_large() -> None:
    """The tables contain at least sixty manifests, valid and invalid, and every CEL rule refuses at least one."""
    table = [case for kind in SAMPLES for how in ("created", "changed") for case in cases(kind, how)]
    refusals = "\n".join(case.refused for case in table)

    assert len(table) >= 60
    assert sum(not case.refused for case in table) >= 30
    rules = [rule for definition in DEFINITIONS for rule in every_rule(definition)]
    assert [rule for rule in rules if rule not in refusals] == []


def every_rule(definition: Definition) -> list[str]:
    """Return the messages of all rules of a definition."""

    def found(value: Any) -> list[str]:
        if isinstance(value, list):
            return [message for each in value for message in found(each)]
        if not isinstance(value, dict):
            return []
        own = [value["message"]] if "rule" in value and "message" in value else []
        return own + [message for each in value.values() for message in found(each)]

    return found(definition.schema())


@pytest.mark.parametrize(
    "manifest", every_field(), ids=lambda each: f"{each['kind']} {each['metadata']['name']}"
)
def test_every_field_comes_back_as_it_was_written(
    api: KubeClient, namespace: str, manifest: Manifest
) -> None:
    """Every field of spec and status is kept unchanged by the API server and by the operator's models."""
    stored = made(api, namespace, manifest)
    read = MODELS[manifest["kind"]].parse(stored).manifest()
    default_status = {"conditions": [not_reconciled()]}

    assert stored["spec"] == manifest["spec"]
    assert stored["status"] == manifest.get("status", default_status)
    for part in manifest.keys() & {"spec", "status"}:
        assert without_empty(read[part]) == without_empty(stored[part])


def without_empty(value: Any) -> Any:
    """Return a value without empty lists, maps and texts."""
    if isinstance(value, dict):
        inner = {name: without_empty(each) for name, each in value.items()}
        return {name: each for name, each in inner.items() if each not in ({}, [], "")}
    return [without_empty(each) for each in value] if isinstance(value, list) else value


def not_reconciled() -> Manifest:
    """Return the condition of every new object."""
    return {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NotReconciled",
        "message": "no operator has reconciled this object yet",
        "lastTransitionTime": EPOCH,
    }


def test_the_sample_of_every_field_has_every_field() -> None:
    """The sample with all fields is complete, so that the round trip covers new fields."""
    samples = every_field()
    missing = [
        f"{definition.kind}.{path}"
        for definition in DEFINITIONS
        for part in ("spec", "status")
        for path in paths(definition.schema()["properties"][part], part)  # type: ignore[call-overload, index]
        if not any(has(each, path.split(".")) for each in samples if each["kind"] == definition.kind)
    ]

    assert missing == []


def paths(schema: Any, path: str) -> list[str]:
    """Return the paths of all fields of a schema; `[]` stands for every item of a list."""
    if "items" in schema:
        return paths(schema["items"], f"{path}.[]")
    inner = schema.get("properties")
    if inner is None:
        return [path]
    return [each for name, field in inner.items() for each in paths(field, f"{path}.{name}")]


def has(value: Any, path: list[str]) -> bool:
    """Return whether a value exists at a path."""
    if not path:
        return True
    if path[0] == "[]":
        return isinstance(value, list) and any(has(each, path[1:]) for each in value)
    return isinstance(value, dict) and path[0] in value and has(value[path[0]], path[1:])


@pytest.mark.parametrize("kind", list(SAMPLES))
def test_defaults_of_the_api_server_are_those_of_the_models(
    api: KubeClient, namespace: str, kind: str
) -> None:
    """Defaults of the API server equal those of the models, so an absent field has one meaning."""
    manifest = object_of(kind, "main", SAMPLES[kind])
    bare = {**manifest, "metadata": {"name": "main", "namespace": namespace}}
    stored = made(api, namespace, manifest)

    assert MODELS[kind].parse(stored).spec == MODELS[kind].parse(bare).spec


def test_defaults_are_those_that_are_documented(api: KubeClient, namespace: str) -> None:
    """The smallest Cluster gets every documented default, including nested ones, and the initial condition."""
    stored = made(api, namespace, object_of("Cluster", "main", SAMPLES["Cluster"]))

    assert yaml.safe_dump(stored["spec"]) == yaml.safe_dump(
        {
            "brokers": [{"name": "a", "firstBrokerId": 0, "replicas": 3, "storage": {"size": "10Gi"}}],
            "claimPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "deletionPolicy": "Delete",
            "etcd": {"managed": {"replicas": 3, "storage": {"size": "2Gi"}}},
            "listeners": {
                "data": {"type": "internal", "perBroker": False},
                "kafka": {"enabled": False, "type": "internal"},
            },
            "networkPolicy": {"enabled": True},
            "podMonitor": {"enabled": True},
        }
    )
    assert stored["status"] == {"conditions": [not_reconciled()]}


def test_a_null_in_the_configuration_is_no_value(api: KubeClient, namespace: str) -> None:
    """A null in the configuration is dropped by a create request and refused by a server-side apply."""
    manifest = object_of("Topic", "main", {**SAMPLES["Topic"], "config": {"a.b": None, "c.d": "1"}})
    stored = made(api, namespace, manifest)
    with pytest.raises(Refused) as refused:
        api.apply(manifest, namespace)

    assert stored["spec"]["config"] == {"c.d": "1"}
    assert words_of(refused.value.message).startswith('spec.config.a.b: Invalid value: "null"')


def test_unknown_fields_are_dropped_without_strict_validation(api: KubeClient, namespace: str) -> None:
    """Unknown fields are dropped for a client without strict validation, such as an old client."""
    manifest = object_of("Topic", "main", {**SAMPLES["Topic"], "partitionCount": 12})
    stored = api.request("POST", folder("Topic", namespace), manifest, query={"fieldValidation": "Ignore"})

    assert stored["spec"] == {**SAMPLES["Topic"], "deletionPolicy": "Delete"}


def test_the_status_is_written_apart_from_the_spec(api: KubeClient, namespace: str) -> None:
    """Writing the object does not change its status, and writing the status does not change its spec."""
    manifest = object_of("Topic", "main", SAMPLES["Topic"])
    lying = made(api, namespace, manifest) | {"status": {"topicName": "lies"}}
    path = folder("Topic", namespace, "main")
    after_spec = api.request("PUT", path, lying)
    taking = after_spec | {"spec": {**after_spec["spec"], "partitions": 99}, "status": {"topicName": "main"}}
    after_status = api.request("PUT", f"{path}/status", taking)

    assert "topicName" not in after_spec["status"]
    assert after_status["status"]["topicName"] == "main"
    assert after_status["spec"] == after_spec["spec"]
    assert after_status["metadata"]["generation"] == 1


def test_conditions_of_several_writers_stand_side_by_side(api: KubeClient, namespace: str) -> None:
    """Conditions merge by type: a writer removes only its own conditions and replaces the default condition."""
    made(api, namespace, object_of("Topic", "main", SAMPLES["Topic"]))

    def types_after(manager: str, *types: str) -> list[str]:
        conditions = [{**not_reconciled(), "type": type_, "reason": "Reported"} for type_ in types]
        status = {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "Topic",
            "status": {"conditions": conditions},
        }
        path, query = (
            folder("Topic", namespace, "main") + "/status",
            {"fieldManager": manager, "force": "true"},
        )
        answer = api.request("PATCH", path, status, query=query, content_type="application/apply-patch+yaml")
        return [f"{each['type']} {each['reason']}" for each in answer["status"]["conditions"]]

    first = types_after("fairlead-operator", "Ready", "Warning")
    second = types_after("another-manager", "Backup")
    third = types_after("fairlead-operator", "Ready")

    assert first == ["Ready Reported", "Warning Reported"]
    assert sorted(second) == ["Backup Reported", "Ready Reported", "Warning Reported"]
    assert sorted(third) == ["Backup Reported", "Ready Reported"]


LISTINGS = {
    "Cluster managed": ["managed", "True", "3/3", "0.2.0", "Available"],
    "Cluster external": ["external", "Unknown", "", "", "NotReconciled"],
    "Cluster ingress": ["ingress", "Unknown", "", "", "NotReconciled"],
    "Cluster gateway": ["gateway", "Unknown", "", "", "NotReconciled"],
    "Topic orders": ["orders", "False", "12", "2", "Reassigning"],
    "User reporting": ["reporting", "True", "user:analytics.reporting", "2026-05-31T10:00:00Z", "Available"],
    "User checkout": ["checkout", "Unknown", "", "", "NotReconciled"],
    "Rebalance wider": ["wider", "False", "Rebalancing", "0/1", "Rebalancing"],
    "EtcdBackup nightly": ["nightly", "True", "2026-05-01T03:00:00Z", "1000", "Scheduled"],
    "Link east": ["east", "True", "3", "12", "1", "Available"],
}
COLUMNS = {
    "Cluster": ["Name", "Ready", "Brokers", "Version", "Reason", "Age"],
    "Topic": ["Name", "Ready", "Partitions", "Replicas", "Reason", "Age"],
    "User": ["Name", "Ready", "Principal", "Expires", "Reason", "Age"],
    "Rebalance": ["Name", "Ready", "State", "Moved", "Reason", "Age"],
    "EtcdBackup": ["Name", "Ready", "Last", "Bytes", "Reason", "Age"],
    "Link": ["Name", "Ready", "Topics", "Lag", "Seconds", "Reason", "Age"],
}


@pytest.mark.parametrize(
    "manifest", every_field(), ids=lambda each: f"{each['kind']} {each['metadata']['name']}"
)
def test_the_listing_shows_what_matters(kubernetes: Kubernetes, api: KubeClient, manifest: Manifest) -> None:
    """The listing of `kubectl get` shows readiness, its reason and the sizes, under the long and the short name."""
    namespace = kubernetes.namespace()
    made(api, namespace, manifest)
    kind = manifest["kind"]
    short = {str(each.kind): each.short_name for each in DEFINITIONS}[kind]
    lines = kubernetes.kubectl("get", short, "--namespace", namespace).splitlines()
    expected = [word or "<none>" for word in LISTINGS[f"{kind} {manifest['metadata']['name']}"]]

    assert lines[0].split() == [name.upper() for name in COLUMNS[kind]]
    assert [word for word in lines[1].split()[:-1] if word != "<none>"] == [
        word for word in expected if word != "<none>"
    ]


def test_every_kind_is_in_the_category(api: KubeClient) -> None:
    """Every kind is listed by `kubectl get fairlead` and has no scale subresource, which cannot refer to a list."""
    served = api.request("GET", "apis/fairlead.dev/v1alpha1")["resources"]
    named = {each["name"]: (each.get("shortNames"), each.get("categories")) for each in served}

    assert named == {
        "clusters": (["flc"], ["fairlead"]),
        "clusters/status": (None, None),
        "etcdbackups": (["flb"], ["fairlead"]),
        "etcdbackups/status": (None, None),
        "links": (["fll"], ["fairlead"]),
        "links/status": (None, None),
        "rebalances": (["flr"], ["fairlead"]),
        "rebalances/status": (None, None),
        "topics": (["flt"], ["fairlead"]),
        "topics/status": (None, None),
        "users": (["flu"], ["fairlead"]),
        "users/status": (None, None),
    }
