"""Computes the digest of the newest record of each key in a log; cleaning does not change this digest.

Replicas of a compacted topic clean their logs at different times, so their bytes differ. The newest record of each key
keeps its offset, time, value and headers, so replicas that were not cleaned beyond the end of the range have equal
digests. `runtime` calls this module from a disk thread. The module must not know about replicas or callers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from fairlead_api.batch.columns import nulls_of
from fairlead_api.batch.header import BatchHeader, iterate_headers
from fairlead_api.identifiers import Offset
from fairlead_api.problems import ProblemError
from fairlead_broker.compaction.key_hashes import KeyHashes
from fairlead_broker.compaction.key_map import KeyMap
from fairlead_broker.compaction.windows import KEYS, Window, WindowBuilder
from fairlead_broker.log.errors import LogDamaged
from fairlead_broker.log.partition_log import PartitionLog
from fairlead_broker.log.range_digest import DigestedRange

MAP_BYTES_MAX: Final = 256 << 20
"""Memory for the hashes of keys, enough for 12 million keys."""
_READ_BYTES: Final = 1 << 20
_MODULUS: Final = 1 << 128
_DIGEST_BYTES: Final = 16
_HEAD: Final = struct.Struct("<qq")
_LENGTH: Final = struct.Struct("<i")
_NO_VALUE: Final = _LENGTH.pack(-1)


class TooManyKeys(Exception):
    """The memory for the hashes is too small for the keys of a log."""


def digest_newest(log: PartitionLog, first_offset: Offset, end_offset: Offset, seed: bytes) -> DigestedRange:
    """Return the digest of the newest record of each key between two offsets, without deleted keys.

    The digest is the sum modulo 2^128 of the first 16 bytes of each record's SHA-256, in 32 hexadecimal digits.
    `end_offset` must not exceed the last stable offset. The call blocks. Raises `TooManyKeys`, `OffsetOutOfRange`,
    `LogClosed` and `StorageFailed`.
    """
    hashes, key_map = KeyHashes(seed), KeyMap(MAP_BYTES_MAX)
    try:
        for window in _windows(log, first_offset, end_offset, WindowBuilder(_has_records, KEYS)):
            keys = window.columns.column(0)
            keyed = ~nulls_of(keys) & (window.offsets >= first_offset)
            upper, lower = hashes.of(keys)
            if not key_map.put(upper[keyed], lower[keyed], window.offsets[keyed]):
                raise TooManyKeys
        newest, total = key_map.newest_offsets(), 0
        for window in _windows(log, first_offset, end_offset, WindowBuilder(_has_records)):
            total += _sum_of(window, newest)
    except LogDamaged as damaged:
        return DigestedRange("", first_offset, damaged.first_offset)
    except _Damaged as damaged:
        return DigestedRange("", first_offset, damaged.offset)
    return DigestedRange(f"{total % _MODULUS:032x}", end_offset, None)


class _Damaged(Exception):
    """A batch fails its checks."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = Offset(offset)


def _windows(
    log: PartitionLog, offset: Offset, end_offset: Offset, builder: WindowBuilder
) -> Iterator[Window]:
    """Yield the committed records of a range, in windows."""
    log.load_aborted()
    while offset < end_offset:
        read = log.read(offset, _READ_BYTES, end_offset)
        if not read.data:
            break
        for piece in log.without_aborted(read) or ():
            for at, header in iterate_headers(piece):
                try:
                    builder.add(header, piece[at : at + header.total_bytes])
                except ProblemError as problem:
                    raise _Damaged(header.base_offset) from problem
        offset = read.next_offset
        if builder.is_full:
            yield builder.take()
    if not builder.is_empty:
        yield builder.take()


def _has_records(header: BatchHeader) -> bool:
    return header.record_count > 0 and not header.is_control


def _sum_of(window: Window, newest: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """Return the sum over the records of a window that are the newest records of their keys."""
    rows = np.flatnonzero(np.isin(window.offsets, newest, assume_unique=True)).tolist()
    keys, values, times, headers = window.columns.columns
    total = 0
    for row in rows:
        value = values[row].as_py()
        if value is None:
            continue
        taken = hashlib.sha256(_HEAD.pack(int(window.offsets[row]), times[row].value))
        for part in (keys[row].as_py(), value, *_flat(headers[row].as_py())):
            taken.update(_NO_VALUE if part is None else _LENGTH.pack(len(part)) + part)
        total += int.from_bytes(taken.digest()[:_DIGEST_BYTES], "big")
    return total


def _flat(headers: list[dict[str, Any]] | None) -> Iterator[bytes | None]:
    for each in headers or ():
        yield each["key"].encode()
        yield each["value"]
