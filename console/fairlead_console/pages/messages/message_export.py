"""Messages as a file: the records of a search as NDJSON or as an Arrow stream, within the budget of the search."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from fairlead_api.timestamps import format_timestamp
from fairlead_console.access import Access, ShownRecords
from fairlead_console.records import arrow
from fairlead_console.records.query import QueryError, check_partition, message_query
from fairlead_console.records.scan import Rows, Scan, ScanLimits

if TYPE_CHECKING:
    import pyarrow as pa

router = APIRouter()
RECORDS_MAX: Final = 1_000_000
SECONDS_MAX: Final = 600
CHUNK_RECORDS: Final = 1000
"""Number of records that are converted to text in one step, in a thread, so that other requests need not wait long."""
MEDIA_TYPES: Final = {"ndjson": "application/x-ndjson", "arrow": "application/vnd.apache.arrow.stream"}


@router.get("/topics/{name}/export")
async def export(
    request: Request,
    access: Access,
    _: ShownRecords,
    name: str,
    form: Annotated[Literal["ndjson", "arrow"], Query()] = "ndjson",
) -> StreamingResponse:
    """Answer with the records of a search as a file."""
    partitions = (await access.admin.describe_topic(name)).partitions
    query = message_query(name, request.query_params)
    try:
        check_partition(query.scan_range, partitions)
        limits = ScanLimits(records=RECORDS_MAX, nbytes=query.nbytes_left, seconds=SECONDS_MAX)
        scan = Scan(access.connection, query.scan_range, query.record_filter, limits)
    except QueryError as error:
        raise HTTPException(422, str(error)) from error
    rows = await _begun(scan.rows())
    lines = _lines(rows, name) if form == "ndjson" else _stream(rows)
    return StreamingResponse(
        lines,
        media_type=MEDIA_TYPES[form],
        headers={"Content-Disposition": f'attachment; filename="{name}.{form}"'},
    )


async def _begun(found: AsyncGenerator[Rows, None]) -> AsyncIterator[Rows]:
    """Wait for the first rows, since a refusal of the cluster can be an answer only before the file begins."""
    first = await anext(found, None)

    async def rest() -> AsyncIterator[Rows]:
        async with aclosing(found):
            if first is not None:
                yield first
            async for rows in found:
                yield rows

    return rest()


async def _lines(found: AsyncIterator[Rows], topic: str) -> AsyncIterator[bytes]:
    """Yield one JSON object per record, with the members of `fairlead consume --output json`."""
    async for rows in found:
        for start in range(0, rows.columns.num_rows, CHUNK_RECORDS):
            chunk = Rows(rows.partition, rows.columns.slice(start, CHUNK_RECORDS))
            yield await asyncio.to_thread(_chunk, topic, chunk)


def _chunk(topic: str, rows: Rows) -> bytes:
    columns = rows.columns
    times = columns.column("timestamp").cast(arrow.pa.int64())
    timed = columns.set_column(columns.schema.get_field_index("timestamp"), "timestamp", times)
    return b"".join(_line(topic, rows.partition, row) for row in timed.to_pylist())


def _line(topic: str, partition: int, row: dict[str, Any]) -> bytes:
    document = {
        "topic": topic,
        "partition": partition,
        "offset": row["offset"],
        "timestamp": format_timestamp(row["timestamp"]),
        "key": _text(row["key"]),
        "value": _text(row["value"]),
        "headers": [[each["key"], _text(each["value"])] for each in row["headers"] or ()],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _text(data: bytes | None) -> object:
    """Return bytes as text, or in base64 if they are not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


async def _stream(found: AsyncIterator[Rows]) -> AsyncIterator[bytes]:
    """Yield an Arrow stream with the columns of a batch and the partition."""
    writer: pa.ipc.RecordBatchStreamWriter | None = None
    buffered = _Chunks()
    async for rows in found:
        partition = arrow.pa.array([rows.partition] * rows.columns.num_rows, arrow.pa.int32())
        batch = rows.columns.append_column("partition", partition)
        if writer is None:
            writer = arrow.pa.ipc.new_stream(buffered, batch.schema)
        if batch.num_rows:
            writer.write_batch(batch)
            yield buffered.take()
    if writer is not None:
        writer.close()
        yield buffered.take()


class _Chunks(io.RawIOBase):
    """File for an Arrow writer, from which the written bytes are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        """Return True, since the file can be written."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Keep a copy of bytes."""
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken
