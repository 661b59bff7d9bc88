"""The batches that replace stored batches: every offset stays covered, and neighbours are merged.

`CleanedBatches` receives the windows of adjacent segments in order, and returns the bytes of the batches that replace
the stored batches. Every offset lies in exactly one batch: a range without records belongs to a neighbouring batch, or
to an empty batch of 88 bytes if no neighbour may cover the range. A batch never crosses a leader epoch, since logs of
replicas are compared by the offsets at which epochs begin.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa

from fairlead_api.batch.columns import payload_sizes
from fairlead_api.batch.extension import ExtensionEntry, ExtensionType
from fairlead_api.batch.header import BatchHeader, StampFlag
from fairlead_api.batch.rewritten_batches import LAST_OFFSET_DELTA_MAX, Cover, encode_rewritten
from fairlead_broker.compaction.fates import VERBATIM_BYTES, Fate, Fates, RoundFacts
from fairlead_broker.compaction.windows import NO_HORIZON, Window, WindowBatch, joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from fairlead_broker.compaction.kept_rows import KeptRows

BODY_BYTES_MAX: Final = 1 << 20
"""Largest Arrow body of a merged batch in bytes."""
_ROW_BYTES: Final = 24
"""Bytes of a record in addition to key, value and headers: offsets, time, offset delta and offsets of the headers."""
_APPEND_TIME: Final = int(StampFlag.APPEND_TIME)


@dataclass(slots=True)
class Totals:
    """Counts of a round."""

    kept_records: int = 0
    dropped_records: int = 0
    removed_to: int = 0
    """Offset after the last tombstone or marker that the round removed."""
    oldest_horizon_us: int = NO_HORIZON
    """Oldest horizon of the tombstones that stay."""
    horizon_bytes: int = 0
    """Size of the batches that have tombstones."""


@dataclass(slots=True)
class _Part:
    """Records of a window that stay."""

    columns: pa.RecordBatch
    offsets: NDArray[np.int64]
    start: int
    stop: int


@dataclass(slots=True)
class _Pending:
    """A batch that may still be merged with the following batches."""

    source: BatchHeader
    base_offset: int
    next_offset: int
    append_time_us: int
    stamp_flags: int
    horizon_us: int = NO_HORIZON
    rows: int = 0
    nbytes: int = 0
    parts: list[_Part] = field(default_factory=list)


class CleanedBatches:
    """Batches of one group of segments, in the order of their offsets."""

    __slots__ = ("_bytes_max", "_facts", "_fates", "_pending", "_totals")

    def __init__(self, facts: RoundFacts, fates: Fates, totals: Totals) -> None:
        """`totals` is updated with every window."""
        self._facts = facts
        self._fates = fates
        self._totals = totals
        self._bytes_max = min(BODY_BYTES_MAX, facts.batch_bytes_max)
        self._pending: _Pending | None = None

    def add(self, window: Window, kept: KeptRows) -> Iterator[tuple[BatchHeader | None, bytes]]:
        """Yield the batches that are complete after a window."""
        columns, offsets = window.columns, window.offsets
        everything = bool(kept.stays.all())
        if not everything:
            columns, offsets = columns.filter(_mask(kept.stays)), offsets[kept.stays]
        totals = self._totals
        totals.kept_records += len(offsets)
        totals.dropped_records += len(kept.stays) - len(offsets)
        totals.removed_to = max(totals.removed_to, kept.removed_to)
        sizes = np.zeros(len(offsets) + 1, np.int64)
        if len(offsets):
            np.cumsum(payload_sizes(columns).sum(axis=0) + _ROW_BYTES, out=sizes[1:])
        # Numbers of kept records, and of kept tombstones, before each batch of the window.
        edges = np.cumsum([0, *(batch.rows for batch in window.batches)])
        kept_before = np.concatenate(([0], np.cumsum(kept.stays)))[edges].tolist()
        tombs_before = np.concatenate(([0], np.cumsum(kept.stays & kept.tombstones)))[edges].tolist()
        for number, batch in enumerate(window.batches):
            start, stop = kept_before[number], kept_before[number + 1]
            part = _Part(columns, offsets, start, stop)
            has_tombstones = tombs_before[number + 1] > tombs_before[number]
            yield from self._take(batch, part, has_tombstones, int(sizes[stop] - sizes[start]))

    def finish(self) -> Iterator[tuple[BatchHeader | None, bytes]]:
        """Yield the last batch."""
        if self._pending is not None:
            yield None, self._encoded(self._pending)
            self._pending = None

    def _take(
        self, batch: WindowBatch, part: _Part, has_tombstones: bool, nbytes: int
    ) -> Iterator[tuple[BatchHeader | None, bytes]]:
        header = batch.header
        fate = self._fates.of(header, batch.data)
        horizon_us = self._horizon(batch) if has_tombstones else NO_HORIZON
        if fate is Fate.FILTERED and self._may_stay(batch, part, horizon_us):
            fate = Fate.VERBATIM
        if fate is Fate.VERBATIM:
            yield from self.finish()
            self._note_horizon(horizon_us, header.total_bytes)
            yield header, bytes(batch.data)
            return
        if not batch.rows and fate is not Fate.DROPPED:
            self._totals.dropped_records += header.record_count
        if fate is Fate.ALONE:
            yield from self.finish()
            yield None, self._alone(batch, part, horizon_us)
            return
        if header.is_control:
            self._totals.removed_to = max(self._totals.removed_to, header.next_offset)
        rows = 0 if fate is Fate.DROPPED else part.stop - part.start
        yield from self._merge(header, part, rows, horizon_us, nbytes if rows else 0)

    def _merge(
        self, header: BatchHeader, part: _Part, rows: int, horizon_us: int, nbytes: int
    ) -> Iterator[tuple[BatchHeader | None, bytes]]:
        pending = self._pending
        if pending is not None and not self._fits(pending, header, rows, horizon_us, nbytes):
            yield None, self._encoded(pending)
            pending = None
        if pending is None:
            self._pending = pending = _Pending(
                header,
                header.base_offset,
                header.base_offset,
                header.append_time_us,
                header.stamp_flags,
            )
        pending.next_offset = header.next_offset
        if not pending.rows:
            if rows:
                pending.source, pending.stamp_flags = header, header.stamp_flags
            newest = max(pending.append_time_us, header.append_time_us)
            pending.append_time_us = (
                header.append_time_us if rows and header.stamp_flags & _APPEND_TIME else newest
            )
        elif not pending.stamp_flags & _APPEND_TIME:
            pending.append_time_us = max(pending.append_time_us, header.append_time_us)
        if not rows:
            return
        pending.rows += rows
        pending.nbytes += nbytes
        pending.horizon_us = min(pending.horizon_us, horizon_us)
        last = pending.parts[-1] if pending.parts else None
        if last is not None and last.columns is part.columns and last.stop == part.start:
            last.stop = part.stop
        else:
            pending.parts.append(part)

    def _fits(self, pending: _Pending, header: BatchHeader, rows: int, horizon_us: int, nbytes: int) -> bool:
        """Return whether a batch may be merged with the pending batch."""
        if header.leader_epoch != pending.source.leader_epoch:
            return False
        if header.next_offset - pending.base_offset - 1 > LAST_OFFSET_DELTA_MAX:
            return False
        if not rows or not pending.rows:
            return True
        if header.stamp_flags != pending.stamp_flags or header.schema_id != pending.source.schema_id:
            return False
        if header.stamp_flags & _APPEND_TIME and header.append_time_us != pending.append_time_us:
            return False
        if pending.nbytes + nbytes > self._bytes_max:
            return False
        return NO_HORIZON in (horizon_us, pending.horizon_us) or horizon_us == pending.horizon_us

    def _may_stay(self, batch: WindowBatch, part: _Part, horizon_us: int) -> bool:
        """Return whether a large batch is stored unchanged, because all its records stay and its horizon is correct."""
        header = batch.header
        return (
            header.total_bytes >= VERBATIM_BYTES
            and part.stop - part.start == header.record_count
            and not header.is_transactional
            and horizon_us == batch.horizon_us
        )

    def _horizon(self, batch: WindowBatch) -> int:
        """Return the horizon of a batch with tombstones: the stored one, or a new one."""
        if batch.horizon_us != NO_HORIZON:
            return batch.horizon_us
        return min(self._facts.now_us + self._facts.delete_retention_us, NO_HORIZON - 1)

    def _note_horizon(self, horizon_us: int, nbytes: int) -> None:
        if horizon_us != NO_HORIZON:
            self._totals.oldest_horizon_us = min(self._totals.oldest_horizon_us, horizon_us)
            self._totals.horizon_bytes += nbytes

    def _alone(self, batch: WindowBatch, part: _Part, horizon_us: int) -> bytes:
        """Return a batch that is not merged, because the producer state refers to its offsets."""
        header = batch.header
        keyed = self._fates.kept_entries(header, batch.data)
        cover = Cover(
            header,
            header.base_offset,
            header.next_offset,
            header.append_time_us,
            header.stamp_flags,
            (*_horizon_entry(horizon_us), *keyed),
            keeps_producer=header.base_offset in self._facts.producer_batches,
        )
        encoded = _encode(cover, [part] if part.stop > part.start else [])
        self._note_horizon(horizon_us, len(encoded))
        return encoded

    def _encoded(self, pending: _Pending) -> bytes:
        cover = Cover(
            pending.source,
            pending.base_offset,
            pending.next_offset,
            pending.append_time_us,
            pending.stamp_flags,
            _horizon_entry(pending.horizon_us),
        )
        encoded = _encode(cover, pending.parts)
        self._note_horizon(pending.horizon_us, len(encoded))
        return encoded


def _mask(stays: NDArray[np.bool_]) -> pa.BooleanArray:
    """Return a column of booleans; `pa.array` would import pandas if installed, taking most of a second."""
    bits = pa.py_buffer(np.packbits(stays, bitorder="little").data)
    return cast("pa.BooleanArray", pa.Array.from_buffers(pa.bool_(), len(stays), [None, bits]))


def _horizon_entry(horizon_us: int) -> tuple[ExtensionEntry, ...]:
    if horizon_us == NO_HORIZON:
        return ()
    return (ExtensionEntry(ExtensionType.HORIZON, struct.pack("<q", horizon_us)),)


def _encode(cover: Cover, parts: list[_Part]) -> bytes:
    if not parts:
        return encode_rewritten(cover, None, np.empty(0, np.int64))
    columns = joined(part.columns.slice(part.start, part.stop - part.start) for part in parts)
    offsets = np.concatenate([part.offsets[part.start : part.stop] for part in parts])
    return encode_rewritten(cover, columns, offsets)
