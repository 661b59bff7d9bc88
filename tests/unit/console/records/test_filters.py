"""Filters on record columns: they choose the same records as a reader that looks at every record."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_console.records.filters import Field, FilterError, Match, RecordFilter
from fairlead_console.records.json_paths import json_path

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]))
ROWS: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]] = [
    (b"a", b"paid by Ann", [("source", b"web")]),
    (None, None, []),
    (b"b", b"\xff\xfe paid", [("paid", None), ("note", b"Ann")]),
    (b"", b"", None),
    (b"paid", b'{"status": "open", "n": 5}', [("x", b"1"), ("x", b"2")]),
]
BATCH = pa.RecordBatch.from_arrays(
    [
        pa.array(range(len(ROWS)), pa.int64()),
        pa.array([key for key, _, _ in ROWS], pa.binary()),
        pa.array([value for _, value, _ in ROWS], pa.binary()),
        pa.array(
            [
                None if each is None else [{"key": name, "value": text} for name, text in each]
                for _, _, each in ROWS
            ],
            HEADERS,
        ),
    ],
    names=["offset", "key", "value", "headers"],
)
SIMPLE = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5).map(lambda x: round(x, 1)) | st.text()
)
NAMES = st.sampled_from(["id", "a b", "naïve", 'qu"ote', ""]) | st.text(max_size=3)
DOCUMENTS = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def chosen(wanted: RecordFilter, batch: pa.RecordBatch = BATCH) -> list[int]:
    """Return the offsets of the rows that match."""
    return [int(each) for each in wanted.compiled()(batch).column("offset").to_pylist() if each is not None]


@pytest.mark.parametrize(
    ("field", "kind", "text", "offsets"),
    [
        ("any", "contains", "paid", [0, 2, 4]),
        ("key", "contains", "paid", [4]),
        ("value", "contains", "paid", [0, 2]),
        ("headers", "contains", "paid", [2]),
        ("headers", "contains", "Ann", [2]),
        ("any", "regex", "^(?i:ann)$", [2]),
        ("value", "regex", r"Ann$|\{", [0, 4]),
        ("any", "path", '$.status == "open"', [4]),
        ("value", "path", "$.n > 4", [4]),
        ("value", "path", "$.n == 5.0", [4]),
        ("value", "path", "$.missing", []),
    ],
)
def test_a_filter_chooses_rows_by_the_columns(
    field: Field, kind: Match, text: str, offsets: list[int]
) -> None:
    """Text, RE2 patterns and JSON paths are found in key, value and headers; null never matches."""
    assert chosen(RecordFilter(field=field, kind=kind, text=text)) == offsets


def test_a_key_is_compared_as_a_whole() -> None:
    """A search by key finds only records with this key, and a filter restricts the result further."""
    assert chosen(RecordFilter(key=b"paid")) == [4]
    assert chosen(RecordFilter(key=b"")) == [3]
    assert chosen(RecordFilter(key=b"a", text="Ann")) == [0]
    assert chosen(RecordFilter(key=b"a", text="Bob")) == []


@pytest.mark.parametrize(
    ("field", "kind", "text"),
    [
        ("any", "regex", "(a"),
        ("any", "regex", "(a{1000}){1000}"),
        ("any", "contains", "x" * 1001),
        ("value", "path", "id"),
        ("value", "path", "$.id =="),
        ("value", "path", "$.id == paid"),
        ("value", "path", "$" + "[0]" * 33),
        ("headers", "path", "$.id"),
    ],
)
def test_a_filter_that_is_not_valid_is_refused(field: Field, kind: Match, text: str) -> None:
    """An invalid expression, or one that would need too much memory, is refused before anything is read."""
    with pytest.raises(FilterError):
        RecordFilter(field=field, kind=kind, text=text).compiled()


def test_a_pattern_takes_linear_time() -> None:
    """A pattern that would take a backtracking engine years is evaluated at once."""
    values = pa.array([b"a" * 10_000 + b"!"] * 20, pa.binary())
    batch = pa.RecordBatch.from_arrays([pa.array(range(20)), values], names=["offset", "value"])

    assert chosen(RecordFilter(field="value", kind="regex", text="^(a+)+$"), batch) == []


@given(
    st.text(max_size=4) | st.sampled_from(list(".*+?()[]{}|^$\\-# \n")),
    st.text(max_size=9),
    st.text(max_size=9),
)
def test_a_text_is_found_as_it_is_written(text: str, before: str, after: str) -> None:
    """A text with pattern characters, or in any language, is found exactly where it occurs."""
    values = pa.array([(before + text + after).encode(), (before + after).encode()], pa.binary())
    batch = pa.RecordBatch.from_arrays([pa.array([0, 1]), values], names=["offset", "value"])

    expected = [0] + ([1] if text in before + after else [])
    assert chosen(RecordFilter(field="value", text=text), batch) == expected


@given(DOCUMENTS, st.booleans(), st.data())
def test_the_pattern_of_a_path_leaves_out_no_document(
    document: object, is_ascii: bool, data: st.DataObject
) -> None:
    """A path to any value in a document, compared with that value, finds the document however it is formatted."""
    steps, value = [], document
    while isinstance(value, dict | list) and value and data.draw(st.booleans()):
        step = data.draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
        steps.append(step)
        value = value[step]
    text = "$" + "".join(f"[{json.dumps(step)}]" for step in steps)
    if isinstance(value, str | bool | int | float) and data.draw(st.booleans()):
        text += f" == {json.dumps(value)}"
    indent = data.draw(st.sampled_from([None, 1]))
    written = json.dumps(document, ensure_ascii=is_ascii, indent=indent).encode(errors="replace")
    batch = pa.RecordBatch.from_arrays([pa.array([7]), pa.array([written])], names=["offset", "value"])

    assert json_path(text).matches(written)
    assert chosen(RecordFilter(field="value", kind="path", text=text), batch) == [7]
