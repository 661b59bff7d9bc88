from __future__ import annotations

from typing import Any

import pytest
import yaml

from fairlead_operator.schema.definitions import DEFINITIONS, TOPICS, Definition

# Helm stores each release in a Secret of at most 1 MiB, which contains every definition, and `kubectl apply` stores a
# definition in an annotation of at most 256 KiB.
BYTES_MAX = 128 * 1024
EACH = pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each.plural)


def nodes(schema: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return every node of a schema with its path."""
    found = [(path, schema)]
    for name, field in schema.get("properties", {}).items():
        found += nodes(field, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in schema:
            found += nodes(schema[word], f"{path}[]")
    return found


REPLACED_AS_A_WHOLE = (
    ".networkPolicy.clients",
    ".networkPolicy.egress",
    ".proposal.moves",
    ".proposal.brokers",
    "spec.acls",
)
"""Lists that have a single writer and whose items are never merged."""


def resource_nodes(definition: Definition) -> list[tuple[str, dict[str, Any]]]:
    """Return every node of the spec and the status."""
    schema: Any = definition.schema()
    return [node for part in ("spec", "status") for node in nodes(schema["properties"][part], part)]


@EACH
def test_everything_that_can_grow_has_a_bound(definition: Definition) -> None:
    """Every string, list and map has a maximum size, from which the API server estimates the cost of rules."""
    unbounded = [
        path
        for path, node in resource_nodes(definition)
        if (node.get("type") == "string" and not node.keys() & {"maxLength", "enum", "format"})
        or (node.get("type") == "array" and "maxItems" not in node)
        or ("additionalProperties" in node and "maxProperties" not in node)
    ]

    assert unbounded == []


@EACH
def test_every_field_is_described(definition: Definition) -> None:
    """Every field has a description without line breaks, for `kubectl explain`."""
    fields = [(path, node) for path, node in resource_nodes(definition) if not path.endswith("[]")]

    assert [path for path, node in fields if not str(node.get("description", "")).endswith((".", ")"))] == []
    assert [path for path, node in fields if "  " in node["description"] or "\n" in node["description"]] == []


@EACH
def test_lists_of_objects_with_a_name_are_maps(definition: Definition) -> None:
    """Lists of objects are maps by key, so that server-side apply merges them and rules can compare items."""
    by_position = [
        path
        for path, node in resource_nodes(definition)
        if node.get("items", {}).get("type") == "object" and "x-kubernetes-list-map-keys" not in node
    ]

    assert [path for path in by_position if not any(part in path for part in REPLACED_AS_A_WHOLE)] == []


@EACH
def test_every_rule_has_its_words(definition: Definition) -> None:
    """Every CEL rule has a reason and a message of one line."""
    found = [
        rule
        for _, node in [*resource_nodes(definition), ("", definition.schema())]
        for rule in node.get("x-kubernetes-validations", [])
    ]

    assert len(found) >= 2
    assert [rule for rule in found if rule.keys() - {"fieldPath"} != {"rule", "message", "reason"}] == []
    assert [
        rule["message"] for rule in found if "\n" in rule["message"] or rule["message"].endswith(".")
    ] == []


@EACH
def test_the_file_says_what_the_definition_is(definition: Definition) -> None:
    """The file of a definition is the YAML of its manifest: small, without anchors and without Helm's syntax."""
    text = definition.text()

    assert yaml.safe_load(text) == definition.manifest()
    assert len(text.encode()) < BYTES_MAX
    assert "{{" not in text
    assert "&id" not in text


def test_only_the_first_condition_is_a_default_of_the_status() -> None:
    """The status has a default only as a whole, because the operator writes its fields."""
    for definition in DEFINITIONS:
        defaults = [
            path
            for path, node in resource_nodes(definition)
            if "default" in node and path.startswith("status")
        ]

        assert defaults == ["status"]


def test_names_are_those_of_the_documents() -> None:
    """The short names, category and subresource of each definition are part of the contract."""
    named: list[Any] = [each.manifest()["spec"] for each in DEFINITIONS]

    assert [each["names"]["shortNames"] for each in named] == [
        ["flc"],
        ["flt"],
        ["flu"],
        ["flr"],
        ["flb"],
        ["fll"],
    ]
    assert [each["names"]["categories"] for each in named] == [["fairlead"]] * 6
    assert [list(each["versions"][0]["subresources"]) for each in named] == [["status"]] * 6


def test_columns_are_described_and_the_last_one_is_wide() -> None:
    """Columns have a description, and a column with a priority appears only with `--output wide`."""
    columns: Any = TOPICS.manifest()["spec"]["versions"][0]["additionalPrinterColumns"]  # type: ignore[index, call-overload]

    assert columns[0]["description"] == "Status of the condition Ready"
    assert [each["name"] for each in columns if "priority" in each] == ["Cluster"]
