"""Schemas for kubeconform, generated from the API server's description of its kinds and Fairlead's definitions.

Without these schemas, kubeconform would download schemas. Each file contains the schema of one kind and its types; the
schema refuses unknown fields.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]
REFERENCE = "#/definitions/"
# The server describes this type as text, although numbers are valid too.
NUMBER_OR_TEXT = {"type": ["string", "integer", "number"]}


def write_schemas(openapi: Schema, definitions: list[Path], folder: Path) -> str:
    """Write one file for each kind and return the location for kubeconform.

    `openapi` is the answer of `/openapi/v2`.
    """
    types = {name: closed(schema) for name, schema in openapi["definitions"].items()}
    for name, schema in types.items():
        for kind in openapi["definitions"][name].get("x-kubernetes-group-version-kind", []):
            whole = {**schema, "definitions": {one: types[one] for one in needed(schema, types)}}
            _write(folder, kind["kind"], kind["group"], kind["version"], whole)
    for path in definitions:
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        for version in spec["versions"]:
            schema = closed(version["schema"]["openAPIV3Schema"])
            schema["properties"] |= {"metadata": {"type": "object"}}
            _write(folder, spec["names"]["kind"], spec["group"], version["name"], schema)
    return f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"


def closed(schema: Schema) -> Schema:
    """Refuse unknown members in a schema and all schemas within."""
    if schema.get("format") == "int-or-string" or schema.get("x-kubernetes-int-or-string"):
        return NUMBER_OR_TEXT
    made = {
        key: value for key, value in schema.items() if not key.startswith("x-kubernetes-") and key != "format"
    }
    if "properties" in schema:
        made["properties"] = {name: closed(value) for name, value in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            made[inner] = closed(schema[inner])
    return made


def needed(schema: Schema, types: dict[str, Schema]) -> set[str]:
    """Return the types that a schema refers to, directly or indirectly."""
    found: set[str] = set()
    left = [schema]
    while left:
        names = {name for name in _references(left.pop()) if name not in found}
        found |= names
        left += [types[name] for name in names]
    return found


def _references(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {name for one in schema for name in _references(one)}
    if not isinstance(schema, dict):
        return set()
    own = schema.get("$ref")
    names = {own.removeprefix(REFERENCE)} if isinstance(own, str) else set()
    return names | {name for value in schema.values() for name in _references(value)}


def _write(folder: Path, kind: str, group: str, version: str, schema: Schema) -> None:
    suffix = f"-{group.split('.', maxsplit=1)[0]}-{version}" if group else f"-{version}"
    (folder / f"{kind.lower()}{suffix}.json").write_text(json.dumps(schema), encoding="utf-8")
