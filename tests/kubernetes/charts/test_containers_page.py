"""The page on containers: its variables are settings, and a real API server accepts its manifest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

import checkout
from fairlead_broker.settings import BrokerSettings

if TYPE_CHECKING:
    import pytest

    from kubernetes_under_test import Kubernetes

PAGE = (checkout.ROOT / "docs/how-to/containers.md").read_text()
MANIFESTS: list[dict[str, Any]] = [
    manifest
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for manifest in yaml.safe_load_all(block)
]
# The variable names the file of settings, and is not a setting.
NO_SETTINGS = {"FAIRLEAD_CONFIG"}


def container() -> dict[str, Any]:
    """Return the broker's container."""
    template = next(each for each in MANIFESTS if each["kind"] == "StatefulSet")["spec"]["template"]
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


def test_every_variable_of_the_page_is_a_setting() -> None:
    """Every variable of the page is a setting, because an unknown variable would be ignored."""
    named = set(re.findall(r"FAIRLEAD_[A-Z_]+[A-Z]", PAGE)) - NO_SETTINGS
    fields = {name.removeprefix("FAIRLEAD_").lower().partition("__")[0] for name in named}

    assert len(fields) > 8
    assert fields <= BrokerSettings.model_fields.keys()


def test_the_variables_of_the_manifest_are_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the manifest are valid as in a pod: the advertised address has the pod's own name."""
    of_pod = {"POD_NAME": "broker-2", "POD_NAMESPACE": "orders", "FAIRLEAD_ID": "2"}
    for each in container()["env"]:
        monkeypatch.setenv(each["name"], each.get("value") or of_pod[each["name"]])
    settings = BrokerSettings.load()

    assert (settings.id, settings.etcd_endpoints) == (2, ("http://etcd:2379",))
    assert str(settings.advertise) == "broker-2.brokers.orders.svc:9520"
    assert str(settings.peer_advertise) == "broker-2.brokers.orders.svc:9521"
    assert not settings.listen[0].loopback


def test_the_manifest_is_admitted_where_pods_are_restricted(kubernetes: Kubernetes, namespace: str) -> None:
    """The pods of the manifest start, each labelled with its number, and have time for the stop hook."""
    for manifest in MANIFESTS:
        kubernetes.api.apply(manifest, namespace)
    pods = kubernetes.api.wait_list(
        "pod",
        namespace,
        lambda found: len(found) == 3 and all(each["status"].get("phase") == "Running" for each in found),
        selector="app.kubernetes.io/name=fairlead",
    )
    numbers = {each["metadata"]["labels"]["apps.kubernetes.io/pod-index"] for each in pods}
    command = container()["lifecycle"]["preStop"]["exec"]["command"]

    assert numbers == {"0", "1", "2"}
    assert command == ["fairlead", "broker", "prepare-stop"]
    assert {each["spec"]["terminationGracePeriodSeconds"] for each in pods} == {110}
