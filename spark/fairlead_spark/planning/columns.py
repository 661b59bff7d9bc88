"""Columns of a read, with their types in Spark's DDL. The module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type in Spark's DDL, and its meaning."""

    name: str
    ddl: str
    meaning: str


COLUMNS: Final = (
    Column("key", "BINARY", "the key; null and empty differ"),
    Column("value", "BINARY", "the value; null and empty differ"),
    Column("topic", "STRING", "name of the topic"),
    Column("partition", "INT", "index of the partition"),
    Column("offset", "BIGINT", "position in the partition"),
    Column(
        "timestamp", "TIMESTAMP", "create time, or append time if the topic is configured so; microseconds"
    ),
    Column("timestampType", "INT", "0 for create time, 1 for append time"),
    Column("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>", "headers in order; null without headers"),
)
BY_NAME: Final = {column.name: column for column in COLUMNS}
HEADERS: Final = "headers"
DEFAULT: Final = tuple(column.name for column in COLUMNS if column.name != HEADERS)


def ddl_of(names: Sequence[str]) -> str:
    """Return the schema of the given columns, in the given order, in Spark's DDL."""
    return ", ".join(f"`{name}` {BY_NAME[name].ddl}" for name in names)
