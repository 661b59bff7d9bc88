"""Which columns of a query become which part of a record, checked before the first task runs.

The names and types are those of Kafka's sink, and `timestamp`. Called by the writers, with the schema as Spark hands
it over. Must not know how records are sent.
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
"""The columns of a record that a query may give, with the types that Spark calls them by."""

LOG_COLUMNS: Final = frozenset({"offset", "timestamptype"})
"""What the source gives and only the log decides: left out, so that what was read can be written as it is."""

RECORD_COLUMNS: Final = ("value", "key", "headers", "timestamp")
"""What is sent; the others say where to."""


class SchemaError(ValueError):
    """The rows of a query cannot become records: which column, its type, what is allowed."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where the parts of a record are in the rows: names as the query spells them, by the names of the parts."""

    record: tuple[tuple[str, str], ...]
    """(part, column) of value, key, headers and timestamp, as far as they are there."""
    partition: str | None
    topic: str | None


def columns_of(schema: StructType, topic: str | None) -> SinkColumns:
    """Return where the parts of a record are; `topic` is the option, which rules over the column.

    Names are compared without case, as Spark does. Raises `SchemaError` naming the column.
    """
    found: dict[str, str] = {}
    for field in schema.fields:
        part, given = field.name.lower(), field.dataType.simpleString()
        if part in LOG_COLUMNS:
            continue
        if part in found:
            message = (
                f"column {field.name} is there twice (names are compared without case); keep one of them"
            )
            raise SchemaError(message)
        if part not in ALLOWED:
            message = (
                f"column {field.name} of type {given} is no part of a record; allowed: {_allowed()}. Select these, "
                "for example to_json(struct(*)) AS value"
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
        message = "it is not said to which topic: set the option topic, or have a column topic of type string"
        raise SchemaError(message)
    return SinkColumns(
        record=tuple((part, found[part]) for part in RECORD_COLUMNS if part in found),
        partition=found.get("partition"),
        topic=None if topic is not None else found["topic"],
    )


def _allowed() -> str:
    return ", ".join(f"{name} ({' or '.join(types)})" for name, types in ALLOWED.items())
