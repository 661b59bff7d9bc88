"""Conversion of a data frame's schema to a Delta schema, and its comparison with the schema of an existing table.

Delta's log stores schemas in Spark's JSON format, so the schema of a data frame is copied with two exceptions. Every
column is nullable, as with all Delta writers, and a type that Delta does not support is refused with an error that
names the column. The module depends neither on Spark nor on storage.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import Field, Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

# Primitive types of the Delta protocol except decimals, whose names include their precision.
PRIMITIVES = frozenset(
    [
        "string",
        "long",
        "integer",
        "short",
        "byte",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
    ]
)
# Types whose values each have exactly one text form. A timestamp has several text forms; users can partition by the
# date of a timestamp.
PARTITION_TYPES = frozenset(["string", "long", "integer", "short", "byte", "boolean", "date"])
# Column properties that this writer does not support, since the writer would have to check rules or generate values.
RULES_OF_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity")


class SchemaMismatch(ValueError):
    """The data frame does not fit the table; the message names the columns and their types on both sides."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a data frame, as a Delta schema and as an Arrow schema."""

    delta: dict[str, Any]
    """Schema as the Delta log stores it; every field, element and value may be null."""

    @property
    def names(self) -> list[str]:
        """The names of the columns, in the order of the data frame."""
        return [field["name"] for field in self.delta["fields"]]

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the files, in which timestamps are microseconds in UTC."""
        return pa.schema(self.schema.to_arrow())  # type: ignore[arg-type] # implements the Arrow C interface

    @property
    def schema(self) -> Schema:
        """The schema as a deltalake object."""
        return Schema.from_json(json.dumps(self.delta))


def columns_of(schema: Mapping[str, Any], partition_by: Sequence[str]) -> Columns:
    """Return the columns for `schema`, a Spark schema in its parsed JSON format.

    Raises `SchemaMismatch` for a type that Delta does not support, for duplicate names, and for partition columns that
    are missing or have an unsupported type.
    """
    delta = nullable(schema, "")
    types = {field["name"]: field["type"] for field in delta["fields"]}
    folded = [name.lower() for name in types]
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice or len(types) != len(delta["fields"]):
        message = f"the frame has several columns named {', '.join(twice) or 'alike'}; Delta ignores case"
        raise SchemaMismatch(message)
    for name in partition_by:
        if name not in types:
            message = f"partitionBy names {name!r}, which the frame does not have; it has {', '.join(types)}"
            raise SchemaMismatch(message)
        if types[name] not in PARTITION_TYPES:
            message = (
                f"partitionBy names {name!r}, which is {spelt(types[name])}; "
                f"it must be one of {', '.join(sorted(PARTITION_TYPES))}"
            )
            raise SchemaMismatch(message)
    if len(set(partition_by)) == len(types):
        message = "partitionBy names every column of the frame, so no column is left for the files"
        raise SchemaMismatch(message)
    return Columns(delta)


def check_fits(
    table: DeltaTable, columns: Columns, partition_by: Sequence[str], *, merge: bool = False
) -> list[Field]:
    """Return the columns that the table lacks, after checking that everything else fits and is supported.

    The order of columns may differ. Columns of the table that the data frame lacks are null in its rows. Without
    `merge`, columns that the table lacks are refused. Raises `SchemaMismatch`.
    """
    metadata = table.metadata()
    where = f"table {table.table_uri}"
    for name in metadata.configuration:
        if name.startswith("delta.constraints.") or name == "delta.columnMapping.mode":
            message = f"{where} has the property {name}, which this writer does not support"
            raise SchemaMismatch(message)
    there = json.loads(table.schema().to_json())
    missing = [field for field in columns.delta["fields"] if field["name"] not in _by_name(there)]
    found = differences(columns.delta, there)
    if not merge:
        found += [
            f"column {field['name']} is not in the table (option mergeSchema=true adds it)"
            for field in missing
        ]
    if found:
        message = f"the frame does not fit {where}: {'; '.join(found)}"
        raise SchemaMismatch(message)
    if list(partition_by) != list(metadata.partition_columns):
        message = (
            f"partitionBy is {spelt_names(partition_by)}, "
            f"but {where} is partitioned by {spelt_names(metadata.partition_columns)}"
        )
        raise SchemaMismatch(message)
    return [Field.from_json(json.dumps(field)) for field in missing]


def nullable(kind: Any, path: str) -> Any:
    """Return a type in Spark's JSON format in which every part may be null. Raises `SchemaMismatch`."""
    if isinstance(kind, str):
        if kind in PRIMITIVES or kind == "timestamp_ntz" or kind.startswith("decimal("):
            return kind
        message = f"column {path} is {kind}, which a Delta table cannot store; cast it"
        raise SchemaMismatch(message)
    match kind["type"]:
        case "struct":
            return {"type": "struct", "fields": [nullable_field(field, path) for field in kind["fields"]]}
        case "array":
            element = nullable(kind["elementType"], f"{path}.element")
            return {"type": "array", "elementType": element, "containsNull": True}
        case "map":
            return {
                "type": "map",
                "keyType": nullable(kind["keyType"], f"{path}.key"),
                "valueType": nullable(kind["valueType"], f"{path}.value"),
                "valueContainsNull": True,
            }
        case other:
            message = f"column {path} is of type {other}, which a Delta table cannot store; cast it"
            raise SchemaMismatch(message)


def nullable_field(field: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return a nullable field without its metadata, such as a watermark, since metadata belongs to the query."""
    below = f"{path}.{field['name']}".lstrip(".")
    return {"name": field["name"], "type": nullable(field["type"], below), "nullable": True, "metadata": {}}


def differences(frame: Mapping[str, Any], table: Mapping[str, Any]) -> list[str]:
    """Return the reasons why the data frame cannot be written to the table, as phrases.

    The table may lack a column of the data frame, unless the column's name differs from another column's only by case.
    The data frame may lack a column of the table if this column may be null.
    """
    mine = {field["name"]: field["type"] for field in frame["fields"]}
    theirs = _by_name(table)
    folded = {name.lower(): name for name in theirs}
    found = [
        f"column {name} is {folded[name.lower()]} in the table, and Delta ignores case"
        for name in mine
        if name not in theirs and name.lower() in folded
    ]
    for name, field in theirs.items():
        if name in mine and plain(mine[name]) != plain(field["type"]):
            found.append(
                f"column {name} is {spelt(mine[name])} in the frame and {spelt(field['type'])} in the table"
            )
        elif not field["nullable"]:
            found.append(f"column {name} of the table may not be null, which this writer does not check")
        elif rules := [key for key in field["metadata"] if key.startswith(RULES_OF_COLUMNS)]:
            found.append(f"column {name} of the table has {rules[0]}, which this writer does not support")
    return found


def _by_name(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {field["name"]: field for field in schema["fields"]}


def plain(kind: Any) -> Any:
    """Return a type without the metadata of its fields, so that types can be compared."""
    if isinstance(kind, str):
        return kind.replace(" ", "")
    if kind["type"] == "struct":
        return [(field["name"], plain(field["type"]), field["nullable"]) for field in kind["fields"]]
    return {key: plain(value) if key.endswith("Type") else value for key, value in kind.items()}


def spelt(kind: Any) -> str:
    """Return the name of a type for error messages."""
    return kind if isinstance(kind, str) else json.dumps(kind, separators=(",", ":"))


def spelt_names(names: Sequence[str]) -> str:
    """Return a list of column names for error messages."""
    return ",".join(names) or "nothing"
