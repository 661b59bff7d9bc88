"""Options of tables in Spark's catalog, from their creation to the reads and writes of later queries."""

from __future__ import annotations

import pytest

from refusals import raises

types = pytest.importorskip("pyspark.sql.types", reason="these tests need the extra spark")

from fairlead_spark.catalog_tables import (  # noqa: E402 - needs pyspark
    created_options,
    read_part,
    stored_options,
    table_schema,
    write_part,
    written_options,
)
from fairlead_spark.option_values import OptionError  # noqa: E402
from fairlead_spark.options import ReadOptions  # noqa: E402
from fairlead_spark.planning.columns import COLUMNS, DEFAULT  # noqa: E402
from fairlead_spark.sink.write_options import WriteOptions  # noqa: E402

PROPERTIES = {
    "provider": "fairlead",
    "owner": "ada",
    "team": "travel",
    "subscribe": "flights",
    "option.subscribe": "flights",
    "option.acks": "1",
    "option.minPartitions": "3",
}
"""Properties that Spark passes for CREATE TABLE with three options."""


def test_a_table_keeps_its_options_in_its_schema() -> None:
    """The options of a table are restored from the JSON that a catalog stores, and apply to reads and to writes."""
    created = created_options(PROPERTIES)
    assert created is not None
    schema = types.StructType.fromJson(table_schema(created).jsonValue())
    stored = stored_options(schema)

    assert schema.names == list(DEFAULT)
    assert stored == {"subscribe": "flights", "acks": "1", "minpartitions": "3"}
    assert ReadOptions.parse(read_part(stored)).tasks_min == 3
    assert WriteOptions.parse(written_options(schema) or {}) == WriteOptions.parse(
        {"topic": "flights", "acks": "1"}
    )


def test_a_frame_is_no_table() -> None:
    """Options and schema of a plain frame are not mistaken for those of a table.

    A table with an unknown option is refused.
    """
    schema = types.StructType([types.StructField("value", types.BinaryType())])

    assert created_options({"subscribe": "flights", "provider": "parquet"}) is None
    assert stored_options(schema) == stored_options(types.StructType()) == {}
    with raises(OptionError, "subscribe"):
        table_schema({"subscribe": "flights", "subscribes": "flights"})


def test_a_write_knows_its_table_or_is_refused() -> None:
    """Rows with columns of two tables, or without the column `offset`, are refused, because their table is unknown."""
    mine, other = table_schema({"subscribe": "a"}), table_schema({"subscribe": "b"})
    narrow = table_schema({"subscribe": "a", "columns": "key,value"})
    for schema in (types.StructType([*mine.fields[:4], *other.fields[4:]]), narrow):
        with pytest.raises(OptionError):
            written_options(schema)

    assert written_options(types.StructType([types.StructField("value", types.BinaryType())])) is None


@pytest.mark.parametrize(
    ("options", "topic"),
    [
        ({"subscribe": "a"}, "a"),
        ({"assign": '{"a": [0]}'}, "a"),
        ({"subscribe": "a", "topic": "b"}, "b"),
        ({"subscribe": "a,b"}, None),
        ({"subscribePattern": "a"}, None),
        ({"assign": '{"a": [0], "b": [0]}'}, None),
    ],
)
def test_rows_go_to_the_topic_of_the_table(options: dict[str, str], topic: str | None) -> None:
    """Rows written to a table go to its only topic, or to the topic in the column `topic` if the table has several."""
    assert WriteOptions.parse(write_part(options)).topic == topic


def test_types_of_a_table_are_those_of_a_read() -> None:
    """The types of the schema with options equal the types of the schema without options."""
    names = ",".join(column.name for column in COLUMNS)
    schema = table_schema({"subscribe": "a", "columns": names})
    simple = {field.name: field.dataType.simpleString().upper() for field in schema.fields}
    declared = {column.name: column.ddl.replace(": ", ":").replace(", ", ",").upper() for column in COLUMNS}

    assert simple == declared
