"""Decoding of stored batches for clients that request JSON or Arrow.

Callers: ``fetch`` and ``tail``, possibly in a thread. Every batch is validated when it is decoded, as in any client,
because the disk is trusted no more than the network. Decoded answers begin exactly at the requested offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from fairlead_api.batch.batches import decode, offsets_of
from fairlead_api.batch.columns import header_counts, numbers_of, payload_sizes
from fairlead_api.batch.header import (
    RECORD_HEADERS_MAX,
    BatchHeader,
    Buffer,
    Codec,
    check_checksums,
    iterate_headers,
)
from fairlead_api.bodies.json_records import (
    Encoding,
    FetchedColumns,
    FetchedRecord,
    JsonFetchAnswer,
    fetched_records,
)
from fairlead_api.bodies.media_types import ARROW_STREAM, BATCHES
from fairlead_api.bodies.payload_texts import PAYLOAD_TEXT_BYTES_MAX, TextTooLargeError
from fairlead_api.identifiers import Offset, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import FetchResult
from fairlead_broker.server.http.codec_threads import wait_for_turn
from fairlead_broker.server.records.arrow_bodies import FETCH_SCHEMA, write_arrow_stream

# Decoding larger results would block the event loop for longer than a switch to a thread takes; a batch of one record
# costs 100 µs.
ON_LOOP_BYTES_MAX: Final = 16 << 10
# Number of decoded bytes after which an answer ends early, as if it had reached max_bytes. The stored batches may be a
# thousand times smaller than the decoded records.
OPENED_BYTES_MAX: Final = 16 << 20
# Maximum number of column bytes that are converted to text at once; the conversion takes ten milliseconds. The text of
# small records is ten times larger than their columns.
SLICE_BYTES_MAX: Final = 32 << 10
# Maximum number of records and headers that are converted to objects at once; an object takes about 800 bytes.
SLICE_OBJECTS_MAX: Final = 4096
# Maximum size of the headers of one record; their text may be six times larger, and is written in one call.
HEADER_BYTES_MAX: Final = 1 << 20
# Number of bytes that a row occupies in addition to its payloads: offset, timestamp and positions in the buffers.
_ROW_BYTES: Final = 32
# Number of bytes of text after which a JSON answer ends early. A compressed batch of a few kilobytes can contain a
# million records.
TEXT_BYTES_MAX: Final = 32 << 20

_JSON_HEAD: Final = b'{"records":['


class FetchedRecords:
    """The records of one partition's fetch result from ``offset`` on.

    ``next_offset`` is the offset of the next fetch. `next_offset` is final only after one of the writing methods has
    run, because an answer ends early when the decoded records are too large.
    """

    __slots__ = ("_offset", "_partition", "_result", "next_offset", "open_bytes")

    def __init__(self, partition: PartitionIndex, offset: Offset, result: FetchResult) -> None:
        self._partition = partition
        self._offset = offset
        self._result = result
        self.next_offset = result.next_offset
        self.open_bytes = 0
        """Decoded size in bytes of the batch that ``slices`` currently converts."""

    @property
    def small(self) -> bool:
        """Whether decoding the result takes less time than a switch to a thread."""
        return self._result.nbytes <= ON_LOOP_BYTES_MAX and all(
            header.codec == Codec.NONE for part in self._result.data for _, header in iterate_headers(part)
        )

    def to_arrow_stream(self) -> list[Buffer]:
        """Return an Arrow IPC stream with one Arrow batch per stored batch and the column ``offset``."""
        return [write_arrow_stream(list(self._batches()))]

    def slices(self, encoding: Encoding) -> Iterator[list[FetchedRecord]]:
        """Yield the records in their JSON form, in slices, because a small batch may contain a million records.

        The iteration ends before a record that JSON answers cannot contain: a record whose text would be too large, or
        that has too many headers; releases before 0.2 stored such headers. Raises not_acceptable if the first record is
        too large for a JSON answer.
        """
        started = False
        for batch in self._batches():
            self.open_bytes = batch.nbytes
            for at, rows, unshown in _bounds(batch):
                try:
                    if unshown:
                        raise _UnshownError(unshown)
                    lines = fetched_records(self._partition, _columns(batch.slice(at, rows)), encoding)
                except (_UnshownError, TextTooLargeError) as error:
                    offset = Offset(int(numbers_of(batch.column("offset"), np.int64)[at]))
                    if not started:
                        raise self._refusal(offset, str(error)) from error
                    self.next_offset = offset
                    return
                yield lines
                started = True

    def to_json(self, encoding: Encoding) -> list[Buffer]:
        """Return the JSON fetch answer as a list of buffers.

        The answer ends after `TEXT_BYTES_MAX` bytes of text, even within a batch.
        """
        texts: list[Buffer] = []
        text_bytes = 0
        for records in self.slices(encoding):
            text = msgspec.json.encode(records)[1:-1]
            texts += (b"," if texts else _JSON_HEAD, text)
            text_bytes += len(text)
            wait_for_turn()
            if text_bytes >= TEXT_BYTES_MAX:
                self.next_offset = Offset(records[-1].offset + 1)
                break
        rest = JsonFetchAnswer(
            records=[],
            next_offset=self.next_offset,
            high_watermark=self._result.high_watermark,
            log_start_offset=self._result.log_start_offset,
        )
        return [*(texts or [_JSON_HEAD]), msgspec.json.encode(rest).removeprefix(_JSON_HEAD)]

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of FETCH_SCHEMA without records below the requested offset and without control batches."""
        opened_bytes, following = 0, self._offset
        for part in self._result.data:
            for at, header in iterate_headers(part):
                if opened_bytes >= OPENED_BYTES_MAX:
                    self.next_offset = following
                    return
                stored = part[at : at + header.total_bytes]
                if header.is_control or header.next_offset <= self._offset:
                    self._check(header, stored)
                    continue
                batch = self._from_offset(header, stored)
                following = Offset(header.next_offset)
                opened_bytes += batch.nbytes
                if batch.num_rows:
                    yield batch

    def _refusal(self, offset: Offset, reason: str) -> ProblemError:
        supported = [BATCHES, ARROW_STREAM]
        return ProblemError(
            "not_acceptable",
            f"the record at offset {offset} of partition {self._partition} cannot be in a JSON answer: {reason};"
            f" supported: {', '.join(supported)}",
            data={"supported": supported},
        )

    def _check(self, header: BatchHeader, stored: memoryview) -> None:
        """Raise log_damaged for a damaged batch.

        If checksums were not checked, a flipped bit in the header could cause the batch to be skipped.
        """
        try:
            check_checksums(stored, 0, header)
        except ProblemError as problem:
            raise _damaged(self._partition, header, problem) from problem

    def _from_offset(self, header: BatchHeader, stored: memoryview) -> pa.RecordBatch:
        try:
            columns = decode(stored, header)
        except ProblemError as problem:
            raise _damaged(self._partition, header, problem) from problem
        offsets = offsets_of(header, columns)
        batch = pa.RecordBatch.from_arrays(
            [*columns.columns[: len(FETCH_SCHEMA) - 1], offsets], schema=FETCH_SCHEMA
        )
        if header.base_offset >= self._offset:
            return batch
        first = int(np.searchsorted(offsets.to_numpy(), self._offset))
        return batch.slice(first)


class _UnshownError(Exception):
    """Raised for a record that cannot be in a JSON answer; the text of the exception states the reason."""


def _bounds(batch: pa.RecordBatch) -> Iterator[tuple[int, int, str]]:
    """Yield the first row and the number of rows of each slice, and the reason if its only row cannot be in an answer.

    A slice has a single row, or a limited number of bytes and objects.
    """
    counts = header_counts(batch)
    sizes = payload_sizes(batch)
    objects = np.zeros(batch.num_rows + 1, np.int64)
    np.cumsum(counts + 1, out=objects[1:])
    nbytes = np.zeros(batch.num_rows + 1, np.int64)
    np.cumsum(sizes.sum(axis=0) + _ROW_BYTES, out=nbytes[1:])
    at = 0
    while at < batch.num_rows:
        fitting = min(
            int(np.searchsorted(objects, objects[at] + SLICE_OBJECTS_MAX, "right")),
            int(np.searchsorted(nbytes, nbytes[at] + SLICE_BYTES_MAX, "right")),
        )
        rows = max(1, fitting - 1 - at)
        # Only a row that exceeds the limits of a slice can exceed the limits of an answer, and such a row forms its own
        # slice.
        yield at, rows, _unshown(int(counts[at]), *sizes[:, at].tolist()) if rows == 1 else ""
        at += rows


def _unshown(headers: int, key_bytes: int, value_bytes: int, header_bytes: int) -> str:
    """Return why a record cannot be in a JSON answer; the result is empty if the record can be in the answer."""
    if headers > RECORD_HEADERS_MAX:
        return f"it has {headers} headers; allowed: {RECORD_HEADERS_MAX}"
    if header_bytes > HEADER_BYTES_MAX:
        return f"it has headers of {header_bytes} bytes; allowed: {HEADER_BYTES_MAX}"
    # The text of a payload is at least as large as the payload.
    if max(key_bytes, value_bytes) > PAYLOAD_TEXT_BYTES_MAX:
        return str(TextTooLargeError())
    return ""


def _damaged(partition: PartitionIndex, header: BatchHeader, problem: ProblemError) -> ProblemError:
    """Return the problem for a damaged stored batch; the client is not at fault."""
    return ProblemError(
        "log_damaged",
        f"the batch at offset {header.base_offset} of partition {partition} cannot be read: {problem.detail}",
        data={
            "partition": partition,
            "first_offset": header.base_offset,
            "next_good_offset": header.next_offset,
        },
    )


def _columns(batch: pa.RecordBatch) -> FetchedColumns:
    headers = batch.column("headers")
    return FetchedColumns(
        offsets=batch.column("offset").to_numpy().tolist(),
        timestamps_us=batch.column("timestamp").cast(pa.int64()).to_numpy().tolist(),
        keys=batch.column("key").to_pylist(),
        values=batch.column("value").to_pylist(),
        headers=[None] * batch.num_rows
        if headers.null_count == batch.num_rows
        else [
            None if pairs is None else [(pair["key"], pair["value"]) for pair in pairs]
            for pairs in headers.to_pylist()
        ],
    )
