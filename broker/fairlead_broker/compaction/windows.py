"""Windows: adjacent batches whose records are handled together, so that the cost of a small batch is low.

`log/cleaning` reads batches from files and passes each to `WindowBuilder`. Every batch of a window is checked in full
before its columns are used: checksums first, then the Arrow columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fairlead_api.batch.batches import decode
from fairlead_api.batch.columns import SCHEMA, numbers_of, one_empty_record
from fairlead_api.batch.extension import ExtensionType, read_extension
from fairlead_api.batch.header import BatchHeader, check_checksums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ROWS_MAX: Final = 65_536
BYTES_MAX: Final = 8 << 20
"""Number of records, and of bytes before compression, at which a window is complete."""
NO_HORIZON: Final = 2**63 - 1
_OFFSET_DELTA: Final = 4
COLUMNS: Final = tuple(SCHEMA.names)
KEYS: Final = ("key",)


class WindowBatch(msgspec.Struct, frozen=True, gc=False):
    """A checked batch of a window."""

    header: BatchHeader
    data: memoryview
    rows: int
    """Number of the batch's records in the window; 0 for batches whose records are not needed."""
    horizon_us: int = NO_HORIZON


class Window(msgspec.Struct, frozen=True):
    """Neighbouring batches and the records of all of them."""

    batches: tuple[WindowBatch, ...]
    columns: pa.RecordBatch
    """The requested columns of `SCHEMA`."""
    offsets: NDArray[np.int64]


class WindowBuilder:
    """Collects batches until they fill a window."""

    __slots__ = ("_batches", "_bytes", "_columns", "_has_rows", "_names", "_offsets", "_rows")

    def __init__(self, has_rows: Callable[[BatchHeader], bool], columns: Sequence[str] = COLUMNS) -> None:
        """`has_rows` returns whether the records of a batch are needed, and `columns` are the needed columns."""
        self._has_rows = has_rows
        self._names = tuple(columns)
        self._clear()

    @property
    def is_full(self) -> bool:
        """Whether the window is complete."""
        return self._rows >= ROWS_MAX or self._bytes >= BYTES_MAX

    @property
    def is_empty(self) -> bool:
        """Whether the window has no batch."""
        return not self._batches

    def add(self, header: BatchHeader, data: memoryview) -> None:
        """Check a batch and add it. Raises `malformed_batch`, `crc_mismatch` or `unsupported_version`."""
        self._bytes += max(header.uncompressed_bytes, header.total_bytes)
        if not self._has_rows(header):
            check_checksums(data, 0, header)
            self._batches.append(WindowBatch(header, data, 0))
            return
        columns = decode(data, header)
        self._batches.append(WindowBatch(header, data, columns.num_rows, _horizon(header, data)))
        rows = columns.num_rows
        if header.has_offset_column:
            self._offsets.append(
                numbers_of(columns.column(_OFFSET_DELTA), np.int32).astype(np.int64) + header.base_offset
            )
        else:
            self._offsets.append(np.arange(header.base_offset, header.base_offset + rows))
        if columns.num_columns != len(self._names):
            columns = columns.select(self._names)
        self._columns.append(columns)
        self._rows += rows

    def take(self) -> Window:
        """Return the window, and begin the next one."""
        window = Window(tuple(self._batches), joined(self._columns), _concatenated(self._offsets))
        self._clear()
        return window

    def _clear(self) -> None:
        self._batches: list[WindowBatch] = []
        self._columns: list[pa.RecordBatch] = []
        self._offsets: list[NDArray[np.int64]] = []
        self._rows = self._bytes = 0


def joined(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the columns of batches with equal schemas as one batch; without batches, an empty batch of `SCHEMA`."""
    parts = list(batches)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return one_empty_record().slice(0, 0)
    schema = parts[0].schema
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([part.column(number) for part in parts]) for number in range(len(schema))],
        schema=schema,
    )


def _concatenated(offsets: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(offsets) if offsets else np.empty(0, np.int64)


def _horizon(header: BatchHeader, data: memoryview) -> int:
    if header.extension_bytes:
        for entry in read_extension(data, header):
            if entry.type == ExtensionType.HORIZON and len(entry.value) == 8:
                return int.from_bytes(entry.value, "little", signed=True)
    return NO_HORIZON
