"""Snapshot files of a log's producer state, from which a starting broker restores the state.

`partition_log` owns the snapshots and passes every append to them. Each segment has a `.producers` file with the state
at the segment's first offset. The last segment also has a file for a later offset. The file for the last segment's
first offset is kept, because after a truncation within that segment it is the only snapshot that covers deleted
segments. A starting broker loads the newest undamaged file at or below the end of the log and replays the batch headers
from that offset on. Snapshots are never synced: a torn snapshot fails its checksum, and the broker then loads the
previous snapshot and reads more headers. The module must not depend on the definition of a duplicate, which is in
`producers`.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from fairlead_api.batch.control_batches import Marker, read_marker
from fairlead_api.batch.extension import (
    REQUEST_DIGEST_BYTES,
    ExtensionType,
    unpack_extension,
)
from fairlead_api.batch.header import HEADER_BYTES, STAMP_BYTES, Attribute
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.log.aborted_index import AbortedIndex, marker_in
from fairlead_broker.log.errors import SHORTAGES, wrap_os_error
from fairlead_broker.log.segments.batch_walk import BadBatch, WalkedBatch, find_good_batch, walk_headers
from fairlead_broker.log.segments.segment_writer import StampedBatch
from fairlead_broker.log.segments.segments import Segment
from fairlead_broker.log.segments.storage import File, Storage, read_whole
from fairlead_broker.producers import (
    AbortedTransaction,
    ProducerState,
    Snapshot,
    aborted_by,
    decode_snapshot,
    encode_snapshot,
    stored_batch,
)

SUFFIX: Final = ".producers"
BEGIN_SUFFIX: Final = ".producers-begin"
TEMPORARY_SUFFIX: Final = ".producers.tmp"
SNAPSHOT_BATCHES_MIN: Final = 100
"""Minimum number of batches between two snapshots. A starting broker reads about this number of headers per
partition.
"""
_PRODUCER_FIELDS: Final = struct.Struct("<2xH24xqii6xH")
"""Attributes, producer id, epoch, base sequence and extension length in the bytes after the stamp."""
_TRANSACTIONAL: Final = int(Attribute.TRANSACTIONAL)
_CONTROL: Final = int(Attribute.CONTROL)
_APPEND_TIME: Final = struct.Struct("<16xq")


class LoggedProducers:
    """Producer state up to the end of one log, and its snapshot files."""

    __slots__ = ("_at_begin", "_high_watermark", "_storage", "_unsaved", "aborted", "state")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._unsaved = 0
        self._high_watermark = Offset(0)
        self._at_begin = False
        """Whether the newest snapshot is for the first offset of the last segment, and must be kept."""
        self.state = ProducerState()
        self.aborted = AbortedIndex(storage)
        """Aborted transactions of the log."""

    def appended(
        self,
        batches: Sequence[StampedBatch],
        rolled: Sequence[Segment],
        log_start: Offset,
        high_watermark: Offset,
    ) -> None:
        """Apply appended batches, and save the state for each segment that was created for the batches."""
        self._high_watermark = high_watermark
        if not rolled:
            self._replay(batches)
            return
        for segment in rolled:
            count = sum(batch.base_offset < segment.base_offset for batch in batches)
            self._replay(batches[:count])
            self.rolled(segment, log_start)
            batches = batches[count:]
        self._replay(batches)

    def write_aborted(self, segment: Segment, unpublished: Sequence[StampedBatch]) -> tuple[File, ...]:
        """Write the aborted transactions of a segment that is being closed, and return the files to sync.

        `unpublished`: batches that are written but not applied yet. Raises `Shortage` or `StorageFailed`.
        """
        aborted = [*self.aborted.of_last(), *filter(None, map(_aborted_by, unpublished))]
        return self.aborted.write(
            segment, [each for each in aborted if each.marker_offset >= segment.base_offset]
        )

    def rolled(self, segment: Segment, log_start: Offset) -> None:
        """Apply the start of a new last segment, and save the state at its base offset. Raises `StorageFailed`."""
        self.aborted.rolled(segment.base_offset, log_start)
        self.save(segment, segment.base_offset)

    def save(self, segment: Segment, offset: Offset) -> None:
        """Write the state up to this offset, in the folder of the segment that contains the offset.

        A full disk raises no error, since an older snapshot suffices. Raises `StorageFailed`.
        """
        path = segment.path_of(SUFFIX)
        temporary = segment.path_of(TEMPORARY_SUFFIX)
        begins = offset == segment.base_offset
        self._at_begin = self._at_begin and not begins
        data = encode_snapshot(Snapshot(offset, self.state, tuple(self.aborted.of_last())))
        try:
            file = self._storage.open(temporary, create=True)
            file.truncate(0)
            file.write([data], 0)
            if self._at_begin:
                self._storage.rename(path, segment.path_of(BEGIN_SUFFIX))
                self._at_begin = False
            self._storage.rename(temporary, path)
            self._at_begin = begins
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise wrap_os_error(error, f"{path}: cannot write {len(data)} bytes") from error
        self._unsaved = 0

    def save_if_due(self, segment: Segment, offset: Offset) -> None:
        """Write the state if enough batches, at least one per entry, were appended since the last snapshot."""
        if self._unsaved >= max(SNAPSHOT_BATCHES_MIN, len(self.state) + len(self.aborted)):
            self.save(segment, offset)

    def save_at_end(self, segment: Segment, offset: Offset) -> None:
        """Write the state if batches were appended since the last snapshot, so that the next start reads no headers."""
        if self._unsaved:
            self.save(segment, offset)

    def rebuild(self, segments: Sequence[Segment], end: Offset, names: Container[str] | None = None) -> None:
        """Read the state from the files of a log that ends at this offset. Raises `OSError` or `UnknownFormat`.

        `names`: names of the files in the folder if the caller has listed them.

        Snapshots that reach beyond the end are removed durably: once the log has grown beyond their offsets
        again, these snapshots would describe batches that no longer exist.
        """
        snapshot = self._newest_snapshot(segments, end, names)
        self.state = snapshot.state
        self._unsaved = 0
        last = segments[-1]
        self.aborted.restart(last.base_offset, snapshot.aborted, has_closed=len(segments) > 1)
        self._at_begin = (
            snapshot.offset == last.base_offset
            and (names is None or last.name_of(SUFFIX) in names)
            and self._storage.exists(last.path_of(SUFFIX))
        )
        for segment in segments:
            if segment.next_offset > snapshot.offset:
                self._walk(segment, snapshot.offset)

    def _newest_snapshot(
        self, segments: Sequence[Segment], end: Offset, names: Container[str] | None
    ) -> Snapshot:
        removed = False
        found = None
        files = ((each, suffix) for each in reversed(segments) for suffix in (SUFFIX, BEGIN_SUFFIX))
        for segment, suffix in files:
            if names is not None and segment.name_of(suffix) not in names:
                continue
            path = segment.path_of(suffix)
            data = self._read(path)
            found = decode_snapshot(data)
            if found is not None and segment.base_offset <= found.offset <= min(end, segment.next_offset):
                break
            if data is not None:
                self._storage.unlink(path)
                removed = True
            found = None
        if removed:
            self._storage.sync_folder(segments[0].folder)
        return Snapshot(segments[0].base_offset, ProducerState()) if found is None else found

    def _read(self, path: Path) -> bytes | None:
        """Return a snapshot's bytes: none, as if it were damaged, for an unreadable file; None for a missing file."""
        try:
            return read_whole(self._storage, path)
        except OSError:
            return b""

    def _walk(self, segment: Segment, start: Offset) -> None:
        body = segment.load()
        position, offset = body.index.place_at_or_below(start)
        offset = max(offset, int(segment.base_offset))
        while position < body.size:
            try:
                for batch in walk_headers(body.file, position, body.size, offset, segment.next_offset):
                    position, offset = batch.end, batch.header.next_offset
                    if batch.header.base_offset >= start:
                        self._replay_walked(body.file, batch)
            except BadBatch as bad:
                # The recovery has reported the damage. Producers with batches in the damaged range continue after the
                # range.
                good = find_good_batch(body.file, bad.search_from, body.size, offset)
                position, offset = (
                    (body.size, offset) if good is None else (good.position, good.header.base_offset)
                )

    def _replay(self, batches: Sequence[StampedBatch]) -> None:
        state = self.state
        self._unsaved += len(batches)
        for batch in batches:
            time_us = _APPEND_TIME.unpack_from(batch.stamp)[0]
            attributes, producer_id, epoch, sequence, extension_bytes = _PRODUCER_FIELDS.unpack_from(
                batch.content
            )
            if attributes & _CONTROL:
                state.advance(time_us)
                self._replay_marker(_marker(batch), batch.base_offset, time_us)
                continue
            if producer_id >= 0:
                delta = batch.last_offset - batch.base_offset
                state.replay(
                    producer_id,
                    epoch,
                    stored_batch(sequence, delta, batch.base_offset, time_us),
                    bool(attributes & _TRANSACTIONAL),
                )
            else:
                state.advance(time_us)
            if extension_bytes:
                start = HEADER_BYTES - STAMP_BYTES
                extension = bytes(batch.content[start : start + extension_bytes])
                self._replay_extension(extension, batch.base_offset, batch.last_offset, time_us)

    def _replay_walked(self, file: File, batch: WalkedBatch) -> None:
        header = batch.header
        self._unsaved += 1
        self.state.advance(header.append_time_us)
        if header.is_control:
            self._replay_marker(marker_in(file, batch), header.base_offset, header.append_time_us)
            return
        if header.has_producer:
            self.state.replay(
                ProducerId(header.producer_id),
                ProducerEpoch(header.producer_epoch),
                stored_batch(
                    header.base_sequence, header.last_offset_delta, header.base_offset, header.append_time_us
                ),
                header.is_transactional,
            )
        if header.extension_bytes:
            extension = bytearray(header.extension_bytes)
            file.read_into(memoryview(extension), batch.position + HEADER_BYTES)
            # The walk over the headers verified only the stamp. The reader of the batch reports a damaged extension.
            with suppress(ProblemError):
                self._replay_extension(
                    bytes(extension), header.base_offset, header.last_offset, header.append_time_us
                )

    def _replay_marker(self, marker: Marker | None, offset: int, time_us: int) -> None:
        if marker is None:
            return
        self.state.replay_marker(marker.producer_id, marker.epoch, Offset(offset), TimestampUs(time_us))
        self.state.transactions.committed(self._high_watermark)
        aborted = aborted_by(marker, Offset(offset))
        if aborted is not None:
            self.aborted.add(aborted)

    def _replay_extension(self, extension: bytes, base: int, last: int, time_us: int) -> None:
        values = {entry.type: entry.value for entry in unpack_extension(extension)}
        key = values.get(ExtensionType.IDEMPOTENCY_KEY)
        if key is not None:
            digest = values.get(ExtensionType.REQUEST_DIGEST, bytes(REQUEST_DIGEST_BYTES))
            self.state.replay_key(key, digest, Offset(base), Offset(last), TimestampUs(time_us))


def _aborted_by(batch: StampedBatch) -> AbortedTransaction | None:
    """Return the transaction that a batch aborts, or None if the batch is not an abort marker."""
    marker = _marker(batch)
    return None if marker is None else aborted_by(marker, batch.base_offset)


def _marker(batch: StampedBatch) -> Marker | None:
    """Return the marker in a batch, or None if the batch has no readable marker."""
    attributes, producer_id, epoch, _, extension_bytes = _PRODUCER_FIELDS.unpack_from(batch.content)
    if not attributes & _CONTROL:
        return None
    start = HEADER_BYTES - STAMP_BYTES
    # Only a cluster at a higher feature level has markers of a later release, which this release cannot read.
    with suppress(ProblemError):
        return read_marker(bytes(batch.content[start : start + extension_bytes]), producer_id, epoch)
    return None
