from __future__ import annotations

import pytest

types = pytest.importorskip("pyspark.sql.types", reason="the sink needs the extra spark")

from fairlead_spark.sink.columns import SchemaError, SinkColumns, columns_of  # noqa: E402 - needs pyspark

HEADERS = types.ArrayType(
    types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
)


def schema(**columns: object) -> types.StructType:
    """Return a schema of the given columns."""
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


def test_the_columns_of_kafkas_sink_are_found_whatever_their_case() -> None:
    """Columns of Kafka's sink are found in any letter case, and columns that only the log assigns are ignored."""
    given = schema(
        Key=types.BinaryType(),
        VALUE=types.StringType(),
        topic=types.StringType(),
        partition=types.IntegerType(),
        offset=types.LongType(),
        timestamp=types.TimestampType(),
        timestampType=types.IntegerType(),
        headers=HEADERS,
    )

    found = columns_of(given, None)

    record = (("value", "VALUE"), ("key", "Key"), ("headers", "headers"), ("timestamp", "timestamp"))
    assert found == SinkColumns(record, "partition", "topic")
    assert columns_of(given, "flights").topic is None


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        (
            {"key": types.StringType()},
            "t",
            "column value (binary or string) is missing; the columns are: key",
        ),
        (
            {"value": types.LongType()},
            "t",
            "column value has type bigint; allowed: binary or string; cast it",
        ),
        (
            {"value": types.StringType(), "partition": types.LongType()},
            "t",
            "column partition has type bigint; allowed: int; cast it",
        ),
        (
            {"value": types.StringType(), "headers": types.MapType(types.StringType(), types.BinaryType())},
            "t",
            "column headers has type map<string,binary>; allowed: array<struct<key:string,value:binary>>; cast it",
        ),
        (
            {"value": types.StringType(), "carrier": types.StringType()},
            "t",
            "column carrier of type string is no",
        ),
        ({"value": types.StringType(), "Value": types.StringType()}, "t", "column Value is duplicated"),
        ({"value": types.StringType()}, None, "set the option topic, or have a column topic"),
    ],
)
def test_what_cannot_be_a_record_is_named_with_its_type(
    columns: dict[str, object], topic: str | None, message: str
) -> None:
    """A column that cannot be written is refused with its type and the allowed types, before a task runs."""
    with pytest.raises(SchemaError) as refused:
        columns_of(schema(**columns), topic)

    assert message in str(refused.value)
