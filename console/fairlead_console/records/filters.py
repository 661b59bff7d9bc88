"""Filters of records, which select the rows of a batch that a page shows. Pure.

A filter works on the columns of a batch. Regular expressions are RE2, whose running time depends only on the length of
the text. For a JSON path, only the few documents that match a pattern are decoded; every document that matches the path
also matches the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from fairlead_console.records import arrow
from fairlead_console.records.json_paths import JsonPath, JsonPathError, json_path

if TYPE_CHECKING:
    import pyarrow as pa

Field: TypeAlias = Literal["any", "key", "value", "headers"]
Match: TypeAlias = Literal["contains", "regex", "path"]
Mask: TypeAlias = "pa.BooleanArray"
Column: TypeAlias = "pa.BinaryArray"
PATTERN_LETTERS_MAX: Final = 1000


class FilterError(ValueError):
    """A filter is not valid; the message names the part and what is allowed."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Conditions for records: this key, and a text, pattern or JSON path in a field."""

    key: bytes | None = None
    """Whole key; None accepts every key."""
    field: Field = "any"
    kind: Match = "contains"
    text: str = ""
    """Text, pattern or path; empty accepts every record."""

    @property
    def accepts_all(self) -> bool:
        """Whether the filter accepts every record."""
        return self.key is None and not self.text

    def compiled(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return the function that removes the rows of a batch that do not match. Raises `FilterError`."""
        key, tests = self.key, _tests(self.field, self.kind, self.text)

        def chosen(batch: pa.RecordBatch) -> pa.RecordBatch:
            """Return the rows that match both conditions; only rows that match the first are tested for the second."""
            if key is not None:
                keys = batch.column("key")
                batch = _rows(batch, arrow.pc.equal(keys, arrow.pa.scalar(key, keys.type)))
            if tests is not None and batch.num_rows:
                batch = _rows(batch, tests(batch))
            return batch

        return chosen


def _rows(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    if not arrow.pc.any(mask).as_py():
        return batch.slice(0, 0)
    return batch.filter(mask)


def _known(mask: Mask) -> Mask:
    """Return a mask in which nulls count as not matching."""
    return cast("Mask", arrow.pc.fill_null(mask, arrow.pa.scalar(False)))


def _tests(field: Field, kind: Match, text: str) -> Callable[[pa.RecordBatch], Mask] | None:
    if not text:
        return None
    if kind == "path":
        return _path_test(field, text)
    test = _text_test(kind, text)
    columns = ("key", "value", "headers") if field == "any" else (field,)

    def fits(batch: pa.RecordBatch) -> Mask:
        """Return whether one of the columns matches, for each row."""
        masks = [
            _in_headers(cast("pa.ListArray[Any]", batch.column(name)), test)
            if name == "headers"
            else test(cast("Column", batch.column(name)))
            for name in columns
        ]
        found = _known(masks[0])
        for mask in masks[1:]:
            found = arrow.pc.or_(found, _known(mask))
        return found

    return fits


def _text_test(kind: Match, text: str) -> Callable[[Column], Mask]:
    if len(text) > PATTERN_LETTERS_MAX:
        msg = f"a filter has at most {PATTERN_LETTERS_MAX} characters; this one has {len(text)}"
        raise FilterError(msg)
    if kind == "contains":
        # RE2 finds a text several times faster than Arrow's search for a substring.
        text = re.escape(text)
    try:
        arrow.pc.match_substring_regex(arrow.pa.array([b""]), text)
    except (arrow.pa.ArrowInvalid, UnicodeError) as error:
        msg = f"{error}; allowed are the regular expressions of RE2"
        raise FilterError(msg) from error
    return lambda column: arrow.pc.match_substring_regex(column, text)


def _in_headers(column: pa.ListArray[Any], test: Callable[[Column], Mask]) -> Mask:
    """Return for each record whether the name or the value of one of its headers matches."""
    found = arrow.np.zeros(len(column), dtype=bool)
    if column.null_count < len(column):
        entries = cast("pa.StructArray", arrow.pc.list_flatten(column))
        parents = arrow.pc.list_parent_indices(column)
        names = cast("Column", entries.field("key").cast(arrow.pa.binary()))
        fits = arrow.pc.or_(test(names), _known(test(cast("Column", entries.field("value")))))
        found[arrow.np.asarray(parents.filter(fits))] = True
    return arrow.pa.array(found)


def _path_test(field: Field, text: str) -> Callable[[pa.RecordBatch], Mask]:
    try:
        path = json_path(text)
    except JsonPathError as error:
        raise FilterError(str(error)) from error
    if field == "headers":
        msg = "a JSON path looks into values or keys, not into headers"
        raise FilterError(msg)
    name = "key" if field == "key" else "value"
    return lambda batch: _at_path(cast("Column", batch.column(name)), path)


def _at_path(column: Column, path: JsonPath) -> Mask:
    """Return for each document whether it matches; only documents that contain the pattern are decoded."""
    found = arrow.np.zeros(len(column), dtype=bool)
    pattern = path.pattern()
    is_likely = arrow.pc.match_substring_regex(column, pattern) if pattern else arrow.pc.is_valid(column)
    likely = arrow.np.flatnonzero(arrow.np.asarray(_known(is_likely)))
    for row in likely:
        found[row] = path.matches(column[int(row)].as_buffer())
    return arrow.pa.array(found)
