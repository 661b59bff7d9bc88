"""Encoding of producer state as bytes with a checksum.

The log writes a snapshot into the folder of its segments, so that a starting broker need not read every batch
header. The file header and the checksum let a broker detect and ignore a snapshot that is truncated, altered, or
written by another release. Layout: docs/reference/files.md.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Final

import msgspec

from fairlead_api.batch.header import checksum
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, Sequence, TimestampUs
from fairlead_broker.producers.aborted import AbortedTransaction
from fairlead_broker.producers.entries import DIGEST_BYTES, KeyEntry, ProducerEntry, StoredBatch
from fairlead_broker.producers.open_transactions import OpenTransactions
from fairlead_broker.producers.state import ProducerState

MAGIC: Final = b"FLPR"
VERSION: Final = 3
_NO_PARTITION_TIME: Final = 1
"""Snapshot version without partition times, in which ages were counted from the newest append time."""
_NO_TRANSACTIONS: Final = 2
"""Snapshot version without transactions."""
_HEAD: Final = struct.Struct("<4sHHI")
_CHECKSUM: Final = struct.Struct("<I")
_BODY: Final = struct.Struct("<qqII")
_PRODUCER: Final = struct.Struct("<qiI")
_BATCH: Final = struct.Struct("<iiqq")
_KEY: Final = struct.Struct(f"<{DIGEST_BYTES}sqqqH")
_PARTITION_TIME: Final = struct.Struct("<q")
"""Partition time of the state or of an entry, stored after the fixed fields of the state or the entry."""
_TRANSACTION: Final = struct.Struct("<Iq")
"""Flags and first offset of a producer's open transaction."""
_TRANSACTIONAL: Final = 1
_ENDED: Final = 2
_NOT_OPEN: Final = -1
_ABORTED_COUNT: Final = struct.Struct("<I")
_ABORTED: Final = struct.Struct("<qqqi")
"""Producer id, first offset, marker offset and epoch of an aborted transaction."""
HEADER_BYTES: Final = _HEAD.size + _CHECKSUM.size


class Snapshot(msgspec.Struct, frozen=True):
    """Producer state of the log up to an offset."""

    offset: Offset
    """Offset at which the snapshot ends. The state includes every batch below this offset and no later batch."""
    state: ProducerState
    aborted: tuple[AbortedTransaction, ...] = ()
    """Aborted transactions whose markers are in the segment, in ascending order of markers."""


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return a snapshot as bytes. Equal states give equal bytes."""
    state = snapshot.state
    producers, keys, opened = state.producers, state.keys, state.transactions.first_offsets
    parts = [
        _BODY.pack(snapshot.offset, state.last_append_time_us, len(producers), len(keys)),
        _PARTITION_TIME.pack(state.partition_time_us),
    ]
    for producer_id, entry in producers.items():
        parts.append(_PRODUCER.pack(producer_id, entry.epoch, len(entry.batches)))
        parts.append(_PARTITION_TIME.pack(entry.partition_time_us))
        flags = _TRANSACTIONAL * entry.is_transactional | _ENDED * entry.is_ended
        parts.append(_TRANSACTION.pack(flags, opened.get(producer_id, _NOT_OPEN)))
        parts.extend(
            _BATCH.pack(batch.first_sequence, batch.last_sequence, batch.base_offset, batch.append_time_us)
            for batch in entry.batches
        )
    for key, used in keys.items():
        parts.append(
            _KEY.pack(used.digest, used.base_offset, used.last_offset, used.append_time_us, len(key))
        )
        parts.append(_PARTITION_TIME.pack(used.partition_time_us) + key)
    parts.append(_ABORTED_COUNT.pack(len(snapshot.aborted)))
    parts.extend(_ABORTED.pack(*each) for each in snapshot.aborted)
    body = b"".join(parts)
    head = _HEAD.pack(MAGIC, VERSION, 0, len(body))
    return head + _CHECKSUM.pack(_checksum(head, body)) + body


def decode_snapshot(data: bytes | None) -> Snapshot | None:
    """Decode the bytes of a snapshot file. Returns None if the file is missing or fails a check."""
    if data is None or len(data) < HEADER_BYTES:
        return None
    magic, version, _, length = _HEAD.unpack_from(data)
    body = data[HEADER_BYTES:]
    if (magic, length) != (MAGIC, len(body)) or version not in (
        VERSION,
        _NO_TRANSACTIONS,
        _NO_PARTITION_TIME,
    ):
        return None
    if _CHECKSUM.unpack_from(data, _HEAD.size)[0] != _checksum(data[: _HEAD.size], body):
        return None
    return _read_body(body, version)


def _checksum(head: bytes, body: bytes) -> int:
    return checksum(body, 0, len(body), checksum(head, 0, len(head)))


def _read_body(body: bytes, version: int) -> Snapshot:
    """Return the snapshot in a body written by `encode_snapshot`, whose checksum was verified.

    In a snapshot without partition times, the ages of entries are computed from append times.
    """
    at = 0

    def partition_time(append_time_us: int) -> int:
        nonlocal at
        if version == _NO_PARTITION_TIME:
            return append_time_us
        at += _PARTITION_TIME.size
        return int(_PARTITION_TIME.unpack_from(body, at - _PARTITION_TIME.size)[0])

    offset, last_append_time_us, producer_count, key_count = _BODY.unpack_from(body)
    at += _BODY.size
    partition_time_us = partition_time(last_append_time_us)
    producers: OrderedDict[ProducerId, ProducerEntry] = OrderedDict()
    opened: list[tuple[ProducerId, Offset]] = []
    for _ in range(producer_count):
        producer_id, epoch, batch_count = _PRODUCER.unpack_from(body, at)
        at += _PRODUCER.size
        flags, active_us = 0, None
        if version != _NO_PARTITION_TIME:
            active_us = partition_time(0)
        if version == VERSION:
            flags, first_offset = _TRANSACTION.unpack_from(body, at)
            at += _TRANSACTION.size
            if first_offset != _NOT_OPEN:
                opened.append((ProducerId(producer_id), Offset(first_offset)))
        stop = at + batch_count * _BATCH.size
        batches = tuple(
            StoredBatch(Sequence(first), Sequence(last), Offset(base), TimestampUs(time_us))
            for first, last, base, time_us in _BATCH.iter_unpack(body[at:stop])
        )
        producers[ProducerId(producer_id)] = ProducerEntry(
            ProducerEpoch(epoch),
            batches,
            batches[-1].append_time_us if active_us is None else active_us,
            bool(flags & _TRANSACTIONAL),
            bool(flags & _ENDED),
        )
        at = stop
    keys: OrderedDict[bytes, KeyEntry] = OrderedDict()
    for _ in range(key_count):
        digest, base, last, time_us, key_bytes = _KEY.unpack_from(body, at)
        at += _KEY.size
        used_us = partition_time(time_us)
        keys[body[at : at + key_bytes]] = KeyEntry(
            digest, Offset(base), Offset(last), TimestampUs(time_us), used_us
        )
        at += key_bytes
    state = ProducerState(
        TimestampUs(last_append_time_us), partition_time_us, producers, keys, OpenTransactions(opened)
    )
    return Snapshot(Offset(offset), state, _read_aborted(body, at) if version == VERSION else ())


def _read_aborted(body: bytes, at: int) -> tuple[AbortedTransaction, ...]:
    start = at + _ABORTED_COUNT.size
    count = _ABORTED_COUNT.unpack_from(body, at)[0]
    return tuple(
        AbortedTransaction(ProducerId(producer_id), Offset(first), Offset(marker), ProducerEpoch(epoch))
        for producer_id, first, marker, epoch in _ABORTED.iter_unpack(
            body[start : start + count * _ABORTED.size]
        )
    )
