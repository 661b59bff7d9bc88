"""Topics as tables of Spark's catalog: `CREATE TABLE flights USING fairlead OPTIONS (...)`.

Spark 4 passes the options of a table to a source in Python only when the table is created. Later queries get only the
stored schema. The stored schema contains the options as metadata of its columns, and reads and writes of the table get
the options from this metadata. The data source `fairlead` and users' programs use this module.

`INSERT INTO a SELECT * FROM b` passes the schema of table b to the write into table a, since Spark does not convert
columns of equal names and types. The write refuses rows that were read from a topic; the write recognises such rows by
their offsets. If the statement names the columns of the table, Spark gives all columns the metadata of the table and
sets the columns that the statement does not name to null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fairlead.blocking import Admin
from fairlead_spark.option_values import HIDDEN, MISSING, OptionError
from fairlead_spark.options import READ_OPTIONS, ReadOptions, known_options
from fairlead_spark.planning.columns import BY_NAME
from fairlead_spark.planning.positions import Assign, Subscribe
from fairlead_spark.sink.write_options import WRITE_OPTIONS, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

OPTION_PREFIX: Final = "option."
"""Prefix of a table's options among the properties that Spark passes when the table is created."""
PROVIDER: Final = "provider"
"""Property with the format of a table, which is not an option of any read or write."""
OFFSET: Final = "offset"
"""Column by which a write recognises rows that were read from a topic."""
METADATA: Final = "fairlead.options"
"""Metadata of each column of a table: the options of the table by name in lower case."""
READ_NAMES: Final = frozenset(option.name.lower() for option in READ_OPTIONS)
WRITE_NAMES: Final = frozenset(option.name.lower() for option in WRITE_OPTIONS)
NOT_IN_NAMES: Final = re.compile(r"\W", re.ASCII)
"""Characters that Spark refuses in names of tables, such as the hyphen in a name of a topic."""


def created_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options in the properties of a table that is being created; None if `given` is not from a catalog.

    Other properties of the table, such as its owner, are left out.
    """
    properties = {name.lower(): value for name, value in given.items()}
    if properties.get(PROVIDER) != "fairlead":
        return None
    return {
        name.removeprefix(OPTION_PREFIX): value
        for name, value in properties.items()
        if name.startswith(OPTION_PREFIX)
    }


def stored_options(schema: StructType) -> dict[str, str]:
    """Return the options of the table that is read with a schema; empty for a schema without a table."""
    metadata = schema.fields[0].metadata if schema.fields else {}
    return dict(metadata.get(METADATA, {}))


def written_options(schema: StructType) -> dict[str, str] | None:
    """Return the options of a write to the table that a schema belongs to; None for a schema without a table.

    Raises `OptionError` if the table cannot be recognised.
    """
    found = [dict(field.metadata.get(METADATA, {})) for field in schema.fields]
    if not any(found):
        return None
    if any(each != found[0] for each in found) or OFFSET not in schema.names:
        allowed = (
            "a table with the column offset, and a statement that names its columns, as in "
            "INSERT INTO flights (key, value) SELECT ..., or a frame with the options bootstrap and topic"
        )
        raise OptionError("topic", MISSING, allowed)
    return write_part(found[0])


def table_schema(options: Mapping[str, str]) -> StructType:
    """Return the schema of a table; the metadata of the schema contains the options.

    Raises `OptionError` for options that neither a read nor a write has, and for invalid values.
    """
    from pyspark.sql import types

    lowered = {name.lower(): value for name, value in options.items()}
    known_options(lowered, (*READ_OPTIONS, *WRITE_OPTIONS))
    if "token" in lowered:
        # The catalog stores the options, and shows them to every user of the table.
        raise OptionError("token", HIDDEN, "the option tokenFile, for a table of the catalog")
    columns = ReadOptions.parse(read_part(lowered)).columns
    WriteOptions.parse(write_part(lowered))
    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    kinds: dict[str, types.DataType] = {
        "key": types.BinaryType(),
        "value": types.BinaryType(),
        "topic": types.StringType(),
        "partition": types.IntegerType(),
        "offset": types.LongType(),
        "timestamp": types.TimestampType(),
        "timestampType": types.IntegerType(),
        "headers": types.ArrayType(header),
    }
    assert kinds.keys() == BY_NAME.keys(), "every column of a read has a type"
    fields = [types.StructField(name, kinds[name]) for name in columns]
    for field in fields:
        field.metadata = {METADATA: lowered}
    return types.StructType(fields)


def read_part(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table that apply to reads."""
    return {name: value for name, value in options.items() if name.lower() not in WRITE_NAMES - READ_NAMES}


def write_part(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a table that apply to writes; the topic defaults to the only topic of its reads."""
    taken = {name: value for name, value in options.items() if name.lower() not in READ_NAMES - WRITE_NAMES}
    match ReadOptions.parse(read_part(options)).selection:
        case Subscribe(topics=(topic,)):
            return {"topic": topic, **taken}
        case Assign(partitions) if len(partitions) == 1:
            return {"topic": next(iter(partitions)), **taken}
        case _:
            return taken


def register_topics(
    spark: SparkSession,
    bootstrap: str,
    *,
    pattern: str = ".*",
    database: str = "fairlead",
    **options: str,
) -> dict[str, str]:
    """Make each topic of a cluster a table of a database; return the names of the tables by topic.

    `pattern` is a regular expression that matches the whole name of a topic; `options` are further options of the
    tables. Characters that Spark refuses in a name become `_`. A table of the same name is replaced, so that a second
    call adds new topics. Tables of deleted topics remain.

    Raises `ValueError` before any change if two topics would get the same name, `OptionError` for an invalid option,
    and `FairleadError` if the cluster does not answer.
    """
    matches = re.compile(pattern).fullmatch
    with Admin(bootstrap) as admin:
        topics = sorted(topic.name for topic in admin.list_topics() if matches(topic.name))
    names: dict[str, str] = {}
    for topic in topics:
        name = NOT_IN_NAMES.sub("_", topic).lower()
        if name in names.values():
            other = next(each for each in names if names[each] == name)
            message = f"topics {other} and {topic} would both be table {name}; restrict pattern, or use two databases"
            raise ValueError(message)
        names[topic] = name
    schemas = {
        topic: table_schema({"bootstrap": bootstrap, "subscribe": topic, **options}) for topic in topics
    }
    spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
    for topic, schema in schemas.items():
        table = f"`{database}`.`{names[topic]}`"
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.catalog.createTable(table, source="fairlead", schema=schema, **stored_options(schema))
    return {topic: f"{database}.{name}" for topic, name in names.items()}
