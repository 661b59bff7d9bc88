"""Rows of a table as JSON objects."""

from __future__ import annotations

import json
import math

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.cli.records.json_rows import RowsError, rows_as_json
from refusals import raises

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.none() | st.text(),
            "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
            "real": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "flag": st.none() | st.booleans(),
        }
    ),
    max_size=20,
)
SCHEMA = pa.schema({"text": pa.string(), "whole": pa.int64(), "real": pa.float64(), "flag": pa.bool_()})


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(ROWS)
def test_every_row_reads_back_as_the_same_object(rows: list[dict[str, object]]) -> None:
    """Names, nulls, numbers and arbitrary text are unchanged after conversion to JSON and back."""
    written = rows_as_json(pa.RecordBatch.from_pylist(rows, SCHEMA))

    assert [json.loads(row) for row in written.to_pylist()] == rows


def test_what_json_has_no_number_for_is_null() -> None:
    """NaN and the infinities are written as null."""
    column = pa.array([math.nan, math.inf, -math.inf, 1.5])

    written = rows_as_json(pa.RecordBatch.from_arrays([column], names=["x"]))

    assert written.to_pylist() == [b'{"x":null}', b'{"x":null}', b'{"x":null}', b'{"x":1.5}']


def test_names_are_escaped_and_other_types_are_text() -> None:
    """A column name may contain any character, and dates are written as text."""
    column = pa.array([0, None], pa.date32())

    written = rows_as_json(pa.RecordBatch.from_arrays([column], names=['a"\n']))

    assert [json.loads(row) for row in written.to_pylist()] == [{'a"\n': "1970-01-01"}, {'a"\n': None}]


def test_two_columns_of_one_name_are_refused() -> None:
    """Two columns with the same name are refused, because a reader of the JSON object would lose one of them."""
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])

    with raises(RowsError, "'a'"):
        rows_as_json(rows)


def test_a_table_without_columns_gives_empty_objects() -> None:
    """A table without columns is converted to one empty object for each row."""
    rows = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))

    assert rows_as_json(rows).to_pylist() == [b"{}", b"{}"]
