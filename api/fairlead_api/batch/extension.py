"""Extension between header and body, in which later versions can add entries without a new batch format.

`batches` and `validation` call this module. This module must not depend on the purpose of entries: the value of an
entry is read by the module that uses its type.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NoReturn

from fairlead_api.batch.header import HEADER_BYTES, BatchHeader, Buffer
from fairlead_api.problems import ProblemError

_ENTRY: Final = struct.Struct("<HH")
REFUSING_TYPES_START: Final = 0x8000
"""First type that must not be skipped: a reader refuses a batch with an unknown type from here upwards."""


class ExtensionType(IntEnum):
    """Types of entries that this release defines."""

    PADDING = 0
    """End of the entries; all bytes after this entry are zero."""
    HORIZON = 1
    """Horizon of tombstones or markers, an i64 in microseconds."""
    IDEMPOTENCY_KEY = 2
    """Idempotency key of at most 64 bytes."""
    COLUMN_STATISTICS = 3
    REQUEST_DIGEST = 4
    """Digest of 16 bytes that distinguishes different requests with the same idempotency key."""
    MARKER = 5
    """End of a transaction, 20 bytes, written by brokers into control batches."""
    LEADER_EPOCH = 6
    """Leader and voters at the start of a leader epoch, JSON, written by brokers into control batches."""
    KAFKA_CODEC = 7
    """Codec in which a Kafka client compressed the batch (one byte, Kafka's number), if batches are not stored in this
    codec. Kafka's clients get the batch uncompressed, since they may have no other codec."""


IDEMPOTENCY_KEY_BYTES_MAX: Final = 64
REQUEST_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ExtensionEntry:
    """Entry of an extension, as stored in the batch."""

    type: int
    value: bytes


def read_extension(batch: Buffer, header: BatchHeader) -> tuple[ExtensionEntry, ...]:
    """Return the entries of a batch in order, including entries of unknown skippable types.

    Raises `malformed_batch` for a truncated entry, padding that is not zero, and unknown types from 0x8000.
    """
    if not header.extension_bytes:
        return ()
    return unpack_extension(bytes(batch[HEADER_BYTES : header.body_start]))


def unpack_extension(extension: bytes) -> tuple[ExtensionEntry, ...]:
    """Return the entries in the bytes of an extension. Raises the problem of `read_extension`."""
    entries: list[ExtensionEntry] = []
    at = 0
    while len(extension) - at >= _ENTRY.size:
        kind, length = _ENTRY.unpack_from(extension, at)
        if kind == ExtensionType.PADDING:
            break
        start = at + _ENTRY.size
        at = start + length
        if kind >= REFUSING_TYPES_START:
            _malformed(f"extension type {kind:#06x} is unknown and must not be skipped")
        if at > len(extension):
            _malformed(
                f"extension entry of type {kind} has {length} bytes, but only {len(extension) - start} bytes remain"
            )
        entries.append(ExtensionEntry(kind, extension[start:at]))
    if any(extension[at:]):
        _malformed("the padding of the extension is not zero")
    return tuple(entries)


def pack_extension(entries: tuple[ExtensionEntry, ...]) -> bytes:
    """Return the bytes of an extension, padded to a multiple of 8."""
    packed = b"".join(_ENTRY.pack(entry.type, len(entry.value)) + entry.value for entry in entries)
    return packed + bytes(-len(packed) % 8)


def idempotency_extension(key: bytes, digest: bytes) -> tuple[ExtensionEntry, ...]:
    """Return the entries of a batch that is stored under an idempotency key."""
    assert 1 <= len(key) <= IDEMPOTENCY_KEY_BYTES_MAX, f"an idempotency key of {len(key)} bytes"
    assert len(digest) == REQUEST_DIGEST_BYTES, f"a request digest of {len(digest)} bytes"
    return (
        ExtensionEntry(ExtensionType.IDEMPOTENCY_KEY, key),
        ExtensionEntry(ExtensionType.REQUEST_DIGEST, digest),
    )


def _malformed(detail: str) -> NoReturn:
    raise ProblemError("malformed_batch", detail)
