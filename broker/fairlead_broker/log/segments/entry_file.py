"""Files of fixed-size entries with checksums: indexes and leader epochs.

A 16-byte header names the kind of the file. Each entry ends with its own checksum, so a file that lost its tail
or contains a page of zeros is valid up to the first missing or zeroed entry. `indexes` and `leader_epochs` use
these files. The module must not know the meaning of the numbers in an entry. Layout: docs/reference/files.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google_crc32c import extend

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC: Final = b"FLEN"
VERSION: Final = 1
HEADER_BYTES: Final = 16
ROWS_BY_LIBRARY_MAX: Final = 32
_HEADER: Final = struct.Struct("<4sHHI")
_CHECKSUM: Final = struct.Struct("<I")


class EntryKind(IntEnum):
    """Kind of a file's entries. The header contains the number of the kind."""

    OFFSET_INDEX = 1
    TIME_INDEX = 2
    LEADER_EPOCHS = 3
    ABORTED = 4


@dataclass(frozen=True, slots=True)
class EntryLayout:
    """The fields of one entry, little-endian, before its checksum."""

    kind: EntryKind
    fields: str
    """Field types as format characters of `struct`, without the byte order."""

    @property
    def entry_bytes(self) -> int:
        """Size of an entry in bytes, including its checksum."""
        return struct.calcsize("<" + self.fields) + _CHECKSUM.size

    def position_of(self, count: int) -> int:
        """Return the position in the file at which the entry after the first `count` entries begins."""
        return HEADER_BYTES + count * self.entry_bytes

    def encode_header(self) -> bytes:
        """Return the first 16 bytes of a file of this kind."""
        head = _HEADER.pack(MAGIC, VERSION, self.kind, 0)
        return head + _CHECKSUM.pack(extend(0, head))

    def encode(self, entries: Iterable[tuple[int, ...]]) -> bytes:
        """Return the bytes of the entries in order, each with its checksum."""
        pack = struct.Struct("<" + self.fields).pack
        encoded = bytearray()
        for entry in entries:
            content = pack(*entry)
            encoded += content
            encoded += _CHECKSUM.pack(extend(0, content))
        return bytes(encoded)

    def decode(self, data: bytes | None) -> NDArray[Any] | None:
        """Return the entries before the first invalid entry as a structured array with fields f0, f1, ...

        Returns None if the header is missing or invalid, because no entry of the file can be trusted.
        """
        if data is None or data[:HEADER_BYTES] != self.encode_header():
            return None
        count = (len(data) - HEADER_BYTES) // self.entry_bytes
        rows = np.frombuffer(data, np.uint8, count * self.entry_bytes, HEADER_BYTES).reshape(
            count, self.entry_bytes
        )
        entries = np.frombuffer(data, _dtype(self.fields), count, HEADER_BYTES)
        bad = np.flatnonzero(_checksums(rows[:, : -_CHECKSUM.size]) != entries["checksum"])
        return entries[: bad[0]] if len(bad) else entries


_NUMPY_TYPES: Final = {"q": "i8", "i": "i4", "I": "u4"}


@cache
def _dtype(fields: str) -> np.dtype[Any]:
    names = [(f"f{index}", "<" + _NUMPY_TYPES[code]) for index, code in enumerate(fields)]
    return np.dtype([*names, ("checksum", "<u4")])


def _checksums(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the CRC32C of each row, computed one column at a time if there are many rows.

    For the index of a full segment, one call of the CRC library per row would take 80 ms. The computation by columns
    takes 10 ms, but for a single row it takes fifty times as long as the library.
    """
    if len(rows) <= ROWS_BY_LIBRARY_MAX:
        return np.fromiter((extend(0, row.tobytes()) for row in rows), np.uint32, len(rows))
    table = _table()
    state = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in range(rows.shape[1]):
        state = table[(state ^ rows[:, column]) & 0xFF] ^ (state >> np.uint32(8))
    return state ^ np.uint32(0xFFFFFFFF)


@cache
def _table() -> NDArray[np.uint32]:
    """Return the byte-wise table of CRC32C (reflected polynomial 0x82F63B78)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table.astype(np.uint32)
