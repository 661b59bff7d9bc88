"""Small files that are replaced as a whole: identity, checkpoint, clean marker.

A document is a 16-byte header with a checksum over the whole file, followed by readable JSON. A document is
written to a temporary file, synced and renamed, and the folder is synced. `directory` reads and writes
documents. Layout: docs/reference/files.md.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from google_crc32c import extend

from fairlead_api.identifiers import Offset, PartitionIndex, TimestampUs, TopicId, TopicIdPartition
from fairlead_broker.compaction.cleanable import CleaningState
from fairlead_broker.log.errors import LogError, wrap_os_error
from fairlead_broker.log.segments.damage import DamagedRange
from fairlead_broker.log.segments.storage import Storage, read_whole, write_atomically

MAGIC: Final = b"FLDC"
VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sHHI")
_CHECKSUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEAD.size + _CHECKSUM.size


class DocumentKind(IntEnum):
    """Kind of a document. The header contains the number of the kind."""

    IDENTITY = 1
    CHECKPOINT = 2
    CLEAN = 3


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Broker and cluster of a data directory."""

    cluster_id: str
    broker_id: int
    directory_id: str
    last_broker_epoch: int = 0
    """Newest incarnation of the broker that led or fetched with this directory; it is stored before the incarnation
    first leads or fetches.
    """
    intact_since: int | None = None
    """Oldest incarnation since which every restart has kept every written byte, synced or not; None if unknown."""
    residence: str | None = None
    """Boot id of the kernel whose page cache contains the last unsynced bytes, and the id of the volume."""
    quarantined: tuple[TopicIdPartition, ...] = ()
    """Replicas in this directory that may lack committed records and must not be served."""


class PartitionCheckpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about a partition that a starting broker cannot read from the partition's files."""

    topic_id: TopicId
    partition: PartitionIndex
    log_start: Offset
    high_watermark: Offset
    recovery_point: Offset
    """Offset below which every record is synced."""
    damaged: tuple[DamagedRange, ...] = ()
    cleaning: CleaningState | None = None
    """Facts about the cleaning of the log, or None if the log was never cleaned."""
    deleted_to: Offset = Offset(0)
    """Offset below which records were deleted on request; at most the log start."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoint entries for all partitions in a data directory."""

    partitions: tuple[PartitionCheckpoint, ...]


class CleanMarker(msgspec.Struct, frozen=True, kw_only=True):
    """Marker of an orderly stop: every byte was synced and the checkpoint is up to date."""

    stopped_at_us: TimestampUs


class CorruptDocument(LogError):
    """A file of the data directory exists but fails its checks."""


Document = TypeVar("Document", Identity, Checkpoint, CleanMarker)
_KINDS: Final = {
    Identity: DocumentKind.IDENTITY,
    Checkpoint: DocumentKind.CHECKPOINT,
    CleanMarker: DocumentKind.CLEAN,
}


def write_document(storage: Storage, path: Path, document: Identity | Checkpoint | CleanMarker) -> None:
    """Durably replace a document. Raises `Shortage` or `StorageFailed`."""
    try:
        write_atomically(storage, path, encode_document(document))
    except OSError as error:
        raise wrap_os_error(error, f"{path}: cannot write") from error


def read_document(storage: Storage, path: Path, kind: type[Document]) -> Document | None:
    """Return a document, or None if the file is missing. Raises `CorruptDocument`."""
    try:
        data = read_whole(storage, path)
    except OSError as error:
        message = f"{path}: cannot read: {error.strerror}"
        raise CorruptDocument(message) from error
    return None if data is None else decode_document(data, kind, path)


def encode_document(document: Identity | Checkpoint | CleanMarker) -> bytes:
    """Return the bytes of a document's file."""
    content = msgspec.json.encode(document) + b"\n"
    head = _HEAD.pack(MAGIC, VERSION, _KINDS[type(document)], len(content))
    return head + _CHECKSUM.pack(extend(extend(0, head), content)) + content


def decode_document(data: bytes, kind: type[Document], path: Path) -> Document:
    """Decode the bytes of a file to a document. Raises `CorruptDocument`, which names the failed check."""
    if len(data) < HEADER_BYTES:
        message = f"{path}: {len(data)} bytes are not a complete header"
        raise CorruptDocument(message)
    magic, version, number, content_bytes = _HEAD.unpack_from(data)
    if magic != MAGIC or number != _KINDS[kind]:
        message = f"{path}: not a file of the kind {_KINDS[kind].name.lower()}"
        raise CorruptDocument(message)
    content = data[HEADER_BYTES:]
    stored = _CHECKSUM.unpack_from(data, _HEAD.size)[0]
    computed = extend(extend(0, data[: _HEAD.size]), content)
    if stored != computed or len(content) != content_bytes:
        message = f"{path}: the checksum is {computed:#010x}, but the file states {stored:#010x}"
        raise CorruptDocument(message)
    if version != VERSION:
        message = f"{path}: version {version} is unknown; supported: {VERSION}"
        raise CorruptDocument(message)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        message = f"{path}: {error}"
        raise CorruptDocument(message) from error
