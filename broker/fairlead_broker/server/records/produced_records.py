"""Conversion of JSON and Arrow bodies into batches.

Callers: ``produce`` and ``topic_produce``. This module converts the records of a request to columns, and columns to
batches with the topic's compression. The module does not choose partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.batch.extension import idempotency_extension
from fairlead_api.batch.header import Codec
from fairlead_api.bodies.cloud_events import parse_event, parse_event_batch, parse_event_headers
from fairlead_api.bodies.json_records import Encoding, RecordColumns, parse_record_lines, parse_records
from fairlead_api.bodies.media_types import CLOUD_EVENT, CLOUD_EVENTS, JSON
from fairlead_api.configuration import TopicConfig
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import KeyedRequest
from fairlead_broker.server.http.call import BINARY_EVENT, Call
from fairlead_broker.server.http.codec_threads import in_thread
from fairlead_broker.server.records.arrow_bodies import read_arrow_stream

if TYPE_CHECKING:
    import pyarrow as pa

# Larger bodies are parsed in a thread, because 1 MiB of JSON would block the event loop for 10 ms.
ON_LOOP_BYTES_MAX = 128 << 10
_EVENT_PARSERS = {CLOUD_EVENT: parse_event, CLOUD_EVENTS: parse_event_batch}
# `producer` means no compression, like `uncompressed`, because a JSON or Arrow body does not specify a compression.
_CODECS = {"lz4": Codec.LZ4, "zstd": Codec.ZSTD}


async def read_records(call: Call, media_type: str, body: bytes, now_us: int) -> pa.RecordBatch:
    """Return the records of a JSON or Arrow body; records without a timestamp get ``now_us``.

    Raises ProblemError malformed_request, unknown_option, invalid_record or batch_too_large.
    """
    if media_type == BINARY_EVENT:
        return _as_batch(parse_event_headers(_texts(call), call.header_text(b"content-type"), body), now_us)
    if media_type in _EVENT_PARSERS:
        return await _from_events(_EVENT_PARSERS[media_type], body, now_us)
    if media_type == JSON:
        encoding = Encoding(call.query.text("encoding"))
        if len(body) <= ON_LOOP_BYTES_MAX:
            return _from_json(body, encoding, now_us)
        return await in_thread(_from_json, body, encoding, now_us)
    if len(body) <= ON_LOOP_BYTES_MAX:
        return read_arrow_stream(body, now_us)
    return await in_thread(read_arrow_stream, body, now_us)


async def _from_events(parse: Callable[[bytes], RecordColumns], body: bytes, now_us: int) -> pa.RecordBatch:
    columns = parse(body) if len(body) <= ON_LOOP_BYTES_MAX else await in_thread(parse, body)
    return _as_batch(columns, now_us)


def _texts(call: Call) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}


async def read_lines(lines: Sequence[tuple[int, bytes]], encoding: Encoding, now_us: int) -> pa.RecordBatch:
    """Return the records of numbered NDJSON lines.

    Raises the same problems as ``read_records``, with the line number.
    """
    if sum(len(line) for _, line in lines) <= ON_LOOP_BYTES_MAX:
        return _as_batch(parse_record_lines(lines, encoding), now_us)
    columns = await in_thread(parse_record_lines, lines, encoding)
    return await in_thread(_as_batch, columns, now_us)


async def encoded(
    records: pa.RecordBatch,
    config: TopicConfig,
    producer: ProducerStamp | None = None,
    keyed: KeyedRequest | None = None,
) -> memoryview:
    """Return the records as one batch with the topic's compression and the producer.

    The leader has not stamped the batch yet.
    """
    codec = _CODECS.get(config.compression_type, Codec.NONE)
    extension = () if keyed is None else idempotency_extension(keyed.key, keyed.digest)
    if records.nbytes <= ON_LOOP_BYTES_MAX:
        return memoryview(encode(records, codec, producer, extension).to_bytes())
    batch = await in_thread(encode, records, codec, producer, extension)
    return memoryview(batch.to_bytes())


def _from_json(body: bytes, encoding: Encoding, now_us: int) -> pa.RecordBatch:
    return _as_batch(parse_records(body, encoding), now_us)


def _as_batch(columns: RecordColumns, now_us: int) -> pa.RecordBatch:
    if not len(columns):
        raise ProblemError("malformed_request", "the body has no records")
    return record_batch(
        columns.values, columns.keys, columns.timestamps_us, columns.headers, default_timestamp_us=now_us
    )
