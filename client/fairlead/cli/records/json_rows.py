"""Conversion of table rows to JSON objects, one batch at a time.

The module is used to load a table file: each row becomes the value of one record. Arrow converts the rows column by
column, so the cost is per batch. The module is pure: it performs no I/O.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

# A control character, a quote or a backslash must be escaped in a JSON string (RFC 8259, section 7).
_NEEDS_CARE = r"[\x00-\x1f]"
_SHORT_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r"))


class RowsError(ValueError):
    """JSON cannot represent the content of a column; the message names the column and a remedy."""


def rows_as_json(rows: pa.RecordBatch) -> pa.Array:
    """Return one JSON object per row as a binary array: names in column order, nulls written as null.

    Numbers and booleans keep their type. NaN and infinities, which JSON lacks, become null. Lists and structures become
    arrays and objects. Values of all other types are written as text.

    Raises:
        RowsError: a column has bytes that are not UTF-8, or two columns have the same name.
    """
    names = rows.schema.names
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        message = (
            f"two columns have the name {repeated!r}; readers of a JSON object would see only one of them"
        )
        raise RowsError(message)
    if rows.num_columns == 0:
        return pa.array([b"{}"] * rows.num_rows, pa.binary())
    pieces: list[pa.Array | pa.Scalar] = []
    for position, name in enumerate(names):
        opening = ("{" if position == 0 else ",") + json.dumps(name, ensure_ascii=False) + ":"
        pieces += [pa.scalar(opening), _column_as_json(name, rows.column(position))]
    return _joined(*pieces, pa.scalar("}")).cast(pa.binary())


def _column_as_json(name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        text = column.cast(pa.string())
    elif pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        text = finite.cast(pa.string())
    elif pa.types.is_nested(kind):
        text = pa.array(
            [None if cell is None else _cell_as_json(cell) for cell in column.to_pylist()], pa.string()
        )
    else:
        try:
            text = _quoted(column.cast(pa.string()))
        except pa.ArrowInvalid as error:
            message = (
                f"column {name} has bytes that are not UTF-8, which JSON cannot represent; "
                "cast the column, or name it `value` to write its bytes unchanged"
            )
            raise RowsError(message) from error
    filled: pa.Array = pc.if_else(pc.is_null(text), pa.scalar("null"), text)
    return filled


def _cell_as_json(cell: object) -> str:
    """Return a cell of a nested column as JSON; values without a JSON type become text, as in flat columns."""
    finite = _without_nan(cell)
    return json.dumps(finite, ensure_ascii=False, separators=(",", ":"), default=_as_text)


def _without_nan(cell: object) -> object:
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else None
    if isinstance(cell, dict):
        return {str(name): _without_nan(each) for name, each in cell.items()}
    if isinstance(cell, list):
        return [_without_nan(each) for each in cell]
    return cell


def _as_text(cell: object) -> str:
    return cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)


def _quoted(text: pa.Array) -> pa.Array:
    for raw, escaped in _SHORT_ESCAPES:
        text = pc.replace_substring(text, raw, escaped)
    if pc.any(pc.match_substring_regex(text, _NEEDS_CARE)).as_py():
        # Control characters without a short escape are rare enough to be escaped one by one.
        text = pa.array(
            [
                None if cell is None else "".join(_escaped(letter) for letter in cell)
                for cell in text.to_pylist()
            ],
            pa.string(),
        )
    quote = pa.scalar('"')
    return _joined(quote, text, quote)


def _joined(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    """Return the concatenated pieces of each row; scalars are repeated in every row."""
    # The type stubs accept only arrays or only scalars, not both in one call.
    join: Callable[..., pa.Array] = pc.binary_join_element_wise
    return join(*pieces, pa.scalar(""))


def _escaped(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x20 else letter
