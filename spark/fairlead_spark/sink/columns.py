"""Mapping of the columns of a query to the parts of a record, which is checked before the first task runs.

Names and types are the same as in Kafka's sink, with the additional column `timestamp`. The writers call this module
with Spark's schema. The module must not depend on how records are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BYTES: Final = ("binary", "string")
ALLOWED: Final = {
    "value": BYTES,
    "key": BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "topic": ("string",),
}
"""Columns of a query that can become parts of a record, each with its allowed Spark types."""

LOG_COLUMNS: Final = frozenset({"offset", "timestamptype"})
"""Columns of the source whose values are assigned by the log. The sink ignores these columns, so that rows of the
source can be written unchanged."""

RECORD_COLUMNS: Final = ("value", "key", "headers", "timestamp")
"""Columns whose values are sent in the record; all other allowed columns determine the destination."""


class SchemaError(ValueError):
    """The rows of a query cannot be written as records; the message states column, type and allowed types."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Column of the query for each part of a record, spelled as in the query."""

    record: tuple[tuple[str, str], ...]
    """Pairs of record part and column name, for each of value, key, headers and timestamp that the query contains."""
    partition: str | None
    topic: str | None
    offset: str | None = None
    """Column that must be null in every row; None if rows may have offsets."""


def columns_of(schema: StructType, topic: str | None, *, to_table: bool = False) -> SinkColumns:
    """Return the column for each part of a record; the option `topic` overrides the column `topic`.

    In a write to a table of the catalog, the column `offset` must be null.
    Names are compared regardless of case, as in Spark. Raises `SchemaError`, which names the column.
    """
    found: dict[str, str] = {}
    for field in schema.fields:
        part, given = field.name.lower(), field.dataType.simpleString()
        if part in LOG_COLUMNS:
            continue
        if part in found:
            message = f"column {field.name} is duplicated (names are not case-sensitive); keep only one"
            raise SchemaError(message)
        if part not in ALLOWED:
            message = (
                f"column {field.name} of type {given} is not part of a record; allowed: {_allowed()}. Select only "
                "these, for example to_json(struct(*)) AS value"
            )
            raise SchemaError(message)
        if given not in ALLOWED[part]:
            message = f"column {field.name} has type {given}; allowed: {' or '.join(ALLOWED[part])}; cast it"
            raise SchemaError(message)
        found[part] = field.name
    if "value" not in found:
        names = ", ".join(schema.names) or "none"
        message = f"column value (binary or string) is missing; the columns are: {names}"
        raise SchemaError(message)
    if topic is None and "topic" not in found:
        message = "no topic is given: set the option topic, or have a column topic of type string"
        raise SchemaError(message)
    return SinkColumns(
        record=tuple((part, found[part]) for part in RECORD_COLUMNS if part in found),
        partition=found.get("partition"),
        topic=None if topic is not None else found["topic"],
        offset=next((name for name in schema.names if to_table and name.lower() == "offset"), None),
    )


def _allowed() -> str:
    return ", ".join(f"{name} ({' or '.join(types)})" for name, types in ALLOWED.items())
