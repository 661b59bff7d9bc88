"""Conversion of JSON and Arrow bodies into batches.

Callers: ``produce``, ``topic_produce``, ``line_produce`` and ``record_storing``. This module parses the records of a
request, and encodes records as batches with the topic's compression. The module does not choose partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa

from fairlead_api.batch.batches import ProducerStamp, record_batch
from fairlead_api.batch.extension import idempotency_extension
from fairlead_api.batch.header import Codec
from fairlead_api.bodies.cloud_events import parse_event, parse_event_headers, parse_event_slices
from fairlead_api.bodies.json_records import Encoding, RecordColumns, parse_record_lines, parse_record_slices
from fairlead_api.bodies.media_types import CLOUD_EVENT, CLOUD_EVENTS, JSON
from fairlead_api.configuration import TopicConfig
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import KeyedRequest
from fairlead_broker.server.http.call import BINARY_EVENT, Call
from fairlead_broker.server.http.codec_threads import in_thread, wait_for_turn
from fairlead_broker.server.records.arrow_bodies import read_arrow_stream
from fairlead_broker.server.records.request_records import (
    LISTED_MAX,
    ON_LOOP_BYTES_MAX,
    ColumnarRecords,
    ListedRecords,
    RequestRecords,
)

# A batch of one record takes a tenth of a millisecond to encode.
ON_LOOP_BATCHES_MAX = 64
# `producer` means no compression, like `uncompressed`, because a JSON or Arrow body does not specify a compression.
_CODECS = {"lz4": Codec.LZ4, "zstd": Codec.ZSTD}


async def read_records(call: Call, media_type: str, body: bytes, now_us: int) -> RequestRecords:
    """Return the records of a JSON or Arrow body; records without a timestamp get ``now_us``.

    Raises ProblemError malformed_request, unknown_option, invalid_record or batch_too_large.
    """
    slices: Iterable[RecordColumns]
    if media_type == JSON:
        slices = parse_record_slices(body, Encoding(call.query.text("encoding")))
    elif media_type == CLOUD_EVENT:
        slices = map(parse_event, [body])
    elif media_type == CLOUD_EVENTS:
        slices = parse_event_slices(body)
    elif media_type == BINARY_EVENT:
        event = parse_event_headers(_texts(call), call.header_text(b"content-type"), body)
        return _records(event, len(body), now_us)
    else:
        read = partial(read_arrow_stream, body, now_us)
        return ColumnarRecords(read() if len(body) <= ON_LOOP_BYTES_MAX else await in_thread(read))
    if len(body) <= ON_LOOP_BYTES_MAX:
        [columns] = slices
        return _records(columns, len(body), now_us)
    return await in_thread(_joined, slices, now_us)


def _texts(call: Call) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}


async def read_lines(lines: Sequence[tuple[int, bytes]], encoding: Encoding, now_us: int) -> RequestRecords:
    """Return the records of numbered NDJSON lines.

    Raises the same problems as ``read_records``, with the line number.
    """
    size = sum(len(line) for _, line in lines)
    if size <= ON_LOOP_BYTES_MAX:
        return _records(parse_record_lines(lines, encoding), size, now_us)
    return await in_thread(lambda: _records(parse_record_lines(lines, encoding), size, now_us))


async def encoded(
    records: RequestRecords,
    config: TopicConfig,
    producer: ProducerStamp | None = None,
    keyed: KeyedRequest | None = None,
) -> memoryview:
    """Return the records as one batch with the topic's compression and the producer.

    The leader has not stamped the batch yet.
    """
    if records.may_block():
        return await in_thread(_encoded, records, config, producer, keyed)
    return _encoded(records, config, producer, keyed)


async def all_encoded(
    records: RequestRecords,
    shares: Sequence[RequestRecords],
    config: TopicConfig,
    producer: ProducerStamp | None,
    keyed: KeyedRequest | None,
) -> list[memoryview | ProblemError]:
    """Return each share of the records as one batch, or the problem for a share that cannot be encoded."""
    if len(shares) > ON_LOOP_BATCHES_MAX or records.may_block():
        return await in_thread(_all_encoded, shares, config, producer, keyed)
    return _all_encoded(shares, config, producer, keyed)


def _all_encoded(
    shares: Sequence[RequestRecords],
    config: TopicConfig,
    producer: ProducerStamp | None,
    keyed: KeyedRequest | None,
) -> list[memoryview | ProblemError]:
    batches: list[memoryview | ProblemError] = []
    for share in shares:
        try:
            batches.append(_encoded(share, config, producer, keyed))
        except ProblemError as problem:
            batches.append(problem)
    return batches


def _encoded(
    records: RequestRecords, config: TopicConfig, producer: ProducerStamp | None, keyed: KeyedRequest | None
) -> memoryview:
    codec = _CODECS.get(config.compression_type, Codec.NONE)
    extension = () if keyed is None else idempotency_extension(keyed.key, keyed.digest)
    return memoryview(records.encode(codec, producer, extension).to_bytes())


def _records(columns: RecordColumns, size: int, now_us: int) -> RequestRecords:
    """Return the records of one slice with ``size`` bytes of text."""
    if not len(columns):
        raise ProblemError("malformed_request", "the body has no records")
    if len(columns) > LISTED_MAX or size > ON_LOOP_BYTES_MAX or any(columns.headers):
        return ColumnarRecords(_as_batch(columns, now_us))
    times = [now_us if time is None else time for time in columns.timestamps_us]
    return ListedRecords(columns.keys, columns.values, times)


def _joined(slices: Iterable[RecordColumns], now_us: int) -> RequestRecords:
    """Return the records of all slices; the event loop has a turn after each slice."""
    batches: list[pa.RecordBatch] = []
    for columns in slices:
        if len(columns):
            batches.append(_as_batch(columns, now_us))
        wait_for_turn()
    if not batches:
        raise ProblemError("malformed_request", "the body has no records")
    return ColumnarRecords(
        batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    )


def _as_batch(columns: RecordColumns, now_us: int) -> pa.RecordBatch:
    return record_batch(
        columns.values, columns.keys, columns.timestamps_us, columns.headers, default_timestamp_us=now_us
    )
