"""Records that a person writes: headers as lines of a form, and the rows or lines of a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import fairlead
from fairlead_console.access import Connection

if TYPE_CHECKING:
    import pyarrow as pa

READ_BYTES: Final = 1024 * 1024
LINES: Final = ".txt"
"""Suffix of files whose lines are the values of records."""
SUFFIXES: Final = (".parquet", ".arrow", ".arrows", ".csv", ".ndjson", ".jsonl", LINES)


class UploadError(ValueError):
    """A field or a file is not valid; the message names it and what is allowed."""


def headers_of_lines(text: str) -> list[tuple[str, bytes | None]]:
    """Return the headers in lines such as `name: value`. Raises `UploadError`."""
    found: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            msg = f"headers: one header per line as name: value; found {line!r}"
            raise UploadError(msg)
        found.append((name.strip(), value.strip().encode()))
    return found


def suffix_of(name: str) -> str:
    """Return the suffix of a file's name. Raises `UploadError`."""
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        msg = f"{name}: unknown kind of file; allowed: {', '.join(SUFFIXES)}"
        raise UploadError(msg)
    return suffix


async def produce_file(
    connection: Connection, topic: str, path: Path, key_column: str | None, line_bytes_max: int
) -> int:
    """Write all records of a file in one transaction, and return their number. Raises `UsageError` for a bad file."""
    records = 0
    async with (
        fairlead.Producer(
            **connection, transactional=True, request_timeout="10s", retry_timeout="30s"
        ) as producer,
        producer.transaction(),
    ):
        async for batch in _batches(path, key_column, line_bytes_max):
            for delivery in await producer.send_batch(topic, batch):
                records += delivery.record_count
    return records


async def _batches(path: Path, key_column: str | None, line_bytes_max: int) -> AsyncIterator[pa.RecordBatch]:
    # Both readers import Arrow, and the reader of files takes 5 MiB more; few consoles ever read a file.
    if path.suffix == LINES:
        from fairlead.cli.records.lines import line_parser, read_records  # noqa: PLC0415

        async for batch in read_records(_parts(path), line_parser(None, None, None), line_bytes_max):
            yield batch
        return
    from fairlead.cli.records.files import table_file  # noqa: PLC0415

    blocks = (await asyncio.to_thread(table_file, path)).blocks(key_column, line_bytes_max)
    while (block := await asyncio.to_thread(next, blocks, None)) is not None:
        yield block.records


async def _parts(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while part := await asyncio.to_thread(file.read, READ_BYTES):
            yield part
