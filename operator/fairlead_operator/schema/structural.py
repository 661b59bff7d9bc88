"""Conversion of Pydantic's JSON schema to the structural schema that the API server requires.

Each difference between the two schema formats is handled by one step. References are replaced by the referenced
definitions. The alternative `null` is removed, since an absent field has the same meaning. `int | str` becomes
int-or-string, and `const` becomes an enumeration. Titles and keywords that the API server does not support are removed.
The default of an object contains only values that differ from the defaults of the object's fields, since the API server
adds the defaults of the fields. An unknown keyword is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias, cast

from pydantic import BaseModel, JsonValue

Schema: TypeAlias = dict[str, JsonValue]

PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
RULES: Final = "x-kubernetes-validations"

# Supported keywords, in the order in which they are written.
_KEPT: Final = (
    "type",
    INT_OR_STRING,
    "anyOf",
    "description",
    "default",
    "enum",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    PRESERVE,
    RULES,
    "required",
    "properties",
    "items",
    "additionalProperties",
)
_DROPPED: Final = frozenset({"$defs", "examples", "propertyNames", "title"})


class NotStructural(Exception):
    """A model contains a construct that a custom resource definition cannot express; the message states its path."""


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model.

    Raises `NotStructural` for a construct that a structural schema cannot express.
    """
    schema: Schema = model.model_json_schema(by_alias=True)
    definitions = cast("dict[str, Schema]", schema.get("$defs", {}))
    return _Inliner(definitions).structural(schema, model.__name__)


class _Inliner:
    """Converts a schema from the outermost node to the innermost, and replaces references with their definitions."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self.definitions = definitions

    def structural(self, schema: Schema, path: str) -> Schema:
        """Return the structural schema of one node and all nodes below it."""
        node = self._without_null(self._in_place(schema), path)
        if INT_OR_STRING in node:
            # Both `x-kubernetes-int-or-string` and `anyOf` are written: Kubernetes reads the first keyword, other tools
            # read the second.
            return _in_order({**node, "anyOf": [{"type": "integer"}, {"type": "string"}]}, path)
        if "const" in node:
            node["enum"] = [node.pop("const")]
        for word in ("items", "additionalProperties"):
            inner = node.pop(word, None)
            # The schema does not forbid additional properties: the API server refuses unknown fields (field validation)
            # or drops them (pruning).
            if isinstance(inner, dict):
                node[word] = self.structural(inner, f"{path}[]")
        if "properties" in node:
            fields = cast("dict[str, Schema]", node["properties"])
            node["properties"] = {
                name: self.structural(field, f"{path}.{name}") for name, field in fields.items()
            }
        return _with_sound_default(_in_order(node, path), path)

    def _in_place(self, schema: Schema) -> Schema:
        reference = schema.get("$ref")
        if reference is None:
            return dict(schema)
        definition = self._in_place(self.definitions[str(reference).removeprefix("#/$defs/")])
        beside = {word: value for word, value in schema.items() if word != "$ref"}
        merged: Schema = {**definition, **beside}
        rules = [*_rules(definition), *_rules(beside)]
        if rules:
            merged[RULES] = rules
        return merged

    def _without_null(self, schema: Schema, path: str) -> Schema:
        alternatives = schema.get("anyOf")
        if alternatives is None:
            return schema
        forms = [form for form in cast("list[Schema]", alternatives) if form.get("type") != "null"]
        beside = {word: value for word, value in schema.items() if word != "anyOf"}
        if "default" in beside and beside["default"] is None:
            del beside["default"]
        if [form.get("type") for form in forms] == ["integer", "string"]:
            return {**beside, INT_OR_STRING: True}
        if len(forms) != 1:
            problem = f"{path}: alternatives of several types"
            raise NotStructural(problem)
        form = self._in_place(forms[0])
        merged: Schema = {**self._without_null(form, path), **beside}
        rules = [*_rules(form), *_rules(beside)]
        if rules:
            merged[RULES] = rules
        return merged


def _rules(schema: Schema) -> list[JsonValue]:
    return cast("list[JsonValue]", schema.get(RULES, []))


def _in_order(node: Schema, path: str) -> Schema:
    unknown = sorted(node.keys() - _DROPPED - set(_KEPT))
    if unknown:
        problem = f"{path}: a structural schema cannot contain {', '.join(unknown)}"
        raise NotStructural(problem)
    return {word: node[word] for word in _KEPT if word in node}


def _with_sound_default(node: Schema, path: str) -> Schema:
    if "default" not in node:
        return node
    default = _pruned(node["default"])
    if default in ({}, [], "") and not _has_inner_defaults(node):
        # An empty string, list or map means the same as an absent field, and the API server would write an empty
        # default into every object.
        return {word: value for word, value in node.items() if word != "default"}
    if node.get("type") == "object" and "properties" not in node:
        problem = f"{path}: a map with a default"
        raise NotStructural(problem)
    return {**node, "default": _only_asked_for(default, node)}


def _has_inner_defaults(node: Schema) -> bool:
    fields = cast("dict[str, Schema]", node.get("properties", {}))
    return any("default" in field for field in fields.values())


def _pruned(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        inner = {key: _pruned(each) for key, each in value.items() if each is not None}
        return {key: each for key, each in inner.items() if each not in ({}, [], "")}
    if isinstance(value, list):
        return [_pruned(each) for each in value]
    return value


def _only_asked_for(default: JsonValue, node: Schema) -> JsonValue:
    """Return an object's default without the values that equal the defaults of its fields."""
    fields = node.get("properties")
    if not isinstance(default, dict) or not isinstance(fields, dict):
        return default
    said = {key: _only_asked_for(value, cast("Schema", fields[key])) for key, value in default.items()}
    return {key: value for key, value in said.items() if value != cast("Schema", fields[key]).get("default")}
