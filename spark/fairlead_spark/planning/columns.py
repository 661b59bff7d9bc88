"""The columns that a read can have, in the words of Spark's schemas. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type as Spark's DDL, what it holds."""

    name: str
    ddl: str
    meaning: str


COLUMNS: Final = (
    Column("key", "BINARY", "the key; null and empty differ"),
    Column("value", "BINARY", "the value; null and empty differ"),
    Column("topic", "STRING", "name of the topic"),
    Column("partition", "INT", "index of the partition"),
    Column("offset", "BIGINT", "position in the partition"),
    Column("timestamp", "TIMESTAMP", "create time, or append time where the topic says so; microseconds"),
    Column("timestampType", "INT", "0 for create time, 1 for append time"),
    Column(
        "headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>", "headers in their order; null without any"
    ),
)
BY_NAME: Final = {column.name: column for column in COLUMNS}
HEADERS: Final = "headers"
DEFAULT: Final = tuple(column.name for column in COLUMNS if column.name != HEADERS)


def ddl_of(names: Sequence[str]) -> str:
    """Return the schema of these columns, in their order."""
    return ", ".join(f"`{name}` {BY_NAME[name].ddl}" for name in names)
