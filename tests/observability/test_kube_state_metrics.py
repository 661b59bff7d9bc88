"""The configuration of kube-state-metrics, whose paths must exist in the custom resource definitions."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

import checkout

FILE = checkout.ROOT / "manifests/kube-state-metrics/custom-resource-state.yaml"
RESOURCES = yaml.safe_load(FILE.read_text(encoding="utf-8"))["spec"]["resources"]
TYPES = {"Gauge": "gauge", "Info": "info"}


def schema_of(about: dict[str, str]) -> dict[str, Any]:
    """Return the schema of a kind from its definition, with the metadata that every object has."""
    path = checkout.ROOT / f"manifests/crds/{about['kind'].lower()}s.{about['group']}.yaml"
    [version] = [
        each
        for each in yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]
        if each["name"] == about["version"]
    ]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    text = {"type": "string"}
    schema["properties"]["metadata"] = {"type": "object", "properties": {"namespace": text, "name": text}}
    return schema


def at(schema: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Return the schema of a field; raise `KeyError` if the field does not exist."""
    for name in path:
        schema = schema["properties"][name]
    return schema


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: each["groupVersionKind"]["kind"])
def test_every_path_is_a_field_of_the_resource(resource: dict[str, Any]) -> None:
    """Labels read text fields, gauges read numbers, and a gauge over a list reads True, False or Unknown."""
    schema = schema_of(resource["groupVersionKind"])
    names = [each["name"] for each in resource["metrics"]]
    for path in resource["labelsFromPath"].values():
        assert at(schema, path)["type"] == "string"
    for metric in resource["metrics"]:
        each = metric["each"]
        body = each[TYPES[each["type"]]]
        base = at(schema, body.get("path", []))
        entry = base.get("items", base)
        for path in body.get("labelsFromPath", {}).values():
            assert at(entry, path)["type"] == "string"
        if "valueFrom" in body:
            assert at(entry, body["valueFrom"])["enum"] == ["True", "False", "Unknown"]
        elif each["type"] == "Gauge":
            # A time is converted to seconds since 1970.
            assert entry["type"] == "integer" or entry.get("format") == "date-time"

    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z_]+", name) for name in [*names, resource["metricNamePrefix"]])
