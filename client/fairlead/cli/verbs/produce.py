"""`fairlead produce`: sends the lines of standard input, or the rows of a file, as records."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
import typer

from fairlead import Admin, BatchDelivery, BatchMetadata, Producer
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Encoding, EncodingOption, TopicName
from fairlead.cli.records.column_files import HEADERS
from fairlead.cli.records.files import FileError, table_file
from fairlead.cli.records.lines import (
    LineParser,
    decoding,
    line_parser,
    read_records,
    standard_input,
    with_nulls,
)
from fairlead.cli.records.record_format import FormatError
from fairlead.cli.session import RETRY_TIMEOUT, fail_usage, is_terminal, run
from fairlead.errors import FairleadError

CHUNKS_IN_FLIGHT = 4  # Maximum number of unacknowledged chunks: reading and sending overlap.
BATCH_BYTES_MAX = 64 * 1024 * 1024  # Maximum uncompressed size of a batch, however well it compresses.
NOTHING = pa.RecordBatch.from_arrays([pa.nulls(0, pa.binary())], names=["value"])

Source = Callable[[int], AsyncIterator[pa.RecordBatch]]
"""Function that yields the records to send; its argument is the maximum number of bytes in a line."""


class Compression(StrEnum):
    """Codec of the record batches."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acknowledgement(StrEnum):
    """Acknowledgement that the command waits for."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Target:
    """Destination and settings of the records."""

    bootstrap: str
    topic: str
    partition: int | None
    acks: str
    compression: str
    report: Literal["words", "json"] | None
    """Format in which partition and offsets of stored records are printed; with None, no offsets are printed."""
    transactional: str | bool = False
    """Name of the producer, or True without a name, if all records are sent in one transaction."""
    transaction_timeout: str = "1m"


TransactionOption = Annotated[
    bool, typer.Option("--transaction", help="Send all records in one transaction, or none.")
]
ProducerName = Annotated[
    str | None,
    typer.Option(
        "--name", help="With --transaction: name of the producer; it fences earlier producers with the name."
    ),
]
TransactionTimeout = Annotated[
    str,
    typer.Option("--transaction-timeout", help="With --transaction: time after which the cluster aborts it."),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("-H", "--header", metavar="NAME:VALUE", help="A header of every record; repeatable."),
]
LineFormat = Annotated[
    str | None, typer.Option("-f", "--format", help="How a line is split, such as '%k %v\\n'.")
]
KeySeparator = Annotated[
    str | None, typer.Option("--key-separator", help="Text between key and value in each line.")
]
NullMarker = Annotated[
    str | None,
    typer.Option("--null-marker", help="Text of a key or value that is null; a null value deletes a key."),
]
LoadedFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="Load .parquet, .arrow(s), .csv, .ndjson or .jsonl (the last three also .gz, .zip), not stdin.",
    ),
]
KeyColumn = Annotated[
    str | None, typer.Option("--key-column", help="With --file: column or member that is the key.")
]
AcksOption = Annotated[Acknowledgement, typer.Option("--acks", help="Acknowledgement to wait for.")]


def produce(
    topic: TopicName,
    key: Annotated[str | None, typer.Option("-k", "--key", help="Key of every record.")] = None,
    header: HeaderOption = None,
    line_format: LineFormat = None,
    key_separator: KeySeparator = None,
    null_marker: NullMarker = None,
    file: LoadedFile = None,
    key_column: KeyColumn = None,
    acks: AcksOption = Acknowledgement.ALL,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Partition to write to.")
    ] = None,
    compression: Annotated[Compression, typer.Option("--compression", help="Codec.")] = Compression.NONE,
    transaction: TransactionOption = False,
    name: ProducerName = None,
    transaction_timeout: TransactionTimeout = "1m",
    encoding: EncodingOption = Encoding.UTF8,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print partition and offsets.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", help="json: print like -v, one JSON object per line.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Write records: one per line of standard input, or one per row of --file.

    Rows of a file become JSON objects. Rows of a Parquet or Arrow file with a binary column `value` are records, with
    optional columns `key` and `headers`. Without -v or --output, only errors are printed.

    With --transaction, readers of committed records see all records or none; after an error or Ctrl-C, none.

    Example: fairlead produce orders --key-separator : < orders.txt

    Example: fairlead produce users --key-separator : --null-marker - < users.txt

    Example: fairlead produce orders --transaction --file orders.parquet
    """
    report, transactional = (
        _format_of(verbose=verbose, output=output),
        _transactional(transaction, name, acks),
    )
    target = Target(
        bootstrap, topic, partition, acks.value, compression.value, report, transactional, transaction_timeout
    )
    headers = _headers(header or [])
    if file is not None:
        if any(option is not None for option in (key, line_format, key_separator, null_marker)):
            fail_usage(
                "--file takes its keys from --key-column; -k, -f, --key-separator, --null-marker apply to lines"
            )
        run(_load(target, file, key_column, headers))
        return
    if key_column is not None:
        fail_usage("--key-column requires --file")
    try:
        parse = decoding(with_nulls(line_parser(key, line_format, key_separator), null_marker), encoding)
    except FormatError as error:
        fail_usage(str(error))
    _send_lines(target, parse, headers)


def _transactional(is_transaction: bool, name: str | None, acks: Acknowledgement) -> str | bool:
    """Return the producer's name, True for a transaction without a name, or False without a transaction."""
    if not is_transaction:
        if name is not None:
            fail_usage("--name requires --transaction")
        return False
    if acks is not Acknowledgement.ALL:
        fail_usage("--transaction requires --acks all")
    return name or True


def _format_of(*, verbose: bool, output: str | None) -> Literal["words", "json"] | None:
    if output == "json":
        return "json"
    if output is not None:
        fail_usage(f"--output {output!r} is not supported by this command; allowed: json")
    return "words" if verbose else None


def _send_lines(target: Target, parse: LineParser, headers: list[tuple[str, bytes]]) -> None:
    lines = _send(
        target, lambda line_bytes_max: read_records(standard_input(), parse, line_bytes_max), headers
    )
    # On a terminal, each line is acknowledged before the next line is read, so that no line is lost however the command
    # ends.
    run(lines, is_endless=sys.stdin.isatty())


def _headers(pairs: Sequence[str]) -> list[tuple[str, bytes]]:
    found = []
    for pair in pairs:
        name, colon, value = pair.partition(":")
        if not colon or not name:
            fail_usage(f"-H {pair!r} is not of the form name:value")
        found.append((name, os.fsencode(value)))
    return found


def _with_headers(records: pa.RecordBatch, headers: list[tuple[str, bytes]]) -> pa.RecordBatch:
    if not headers:
        return records
    if "headers" in records.schema.names:
        msg = "the file has its own headers; omit -H"
        raise FileError(msg)
    entries = [{"key": name, "value": value} for name, value in headers]
    return records.append_column("headers", pa.array([entries] * records.num_rows, HEADERS))


async def _load(target: Target, path: Path, key_column: str | None, headers: list[tuple[str, bytes]]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    file = table_file(path)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not is_terminal()) as progress:
        task = progress.add_task(path.name, total=file.size_bytes)

        async def chunks(line_bytes_max: int) -> AsyncIterator[pa.RecordBatch]:
            blocks = file.blocks(key_column, line_bytes_max)
            while (block := await asyncio.to_thread(next, blocks, None)) is not None:
                yield block.records
                progress.advance(task, block.bytes_read)

        await _send(target, chunks, headers)
        progress.update(task, completed=file.size_bytes)


class Acknowledgements:
    """Deliveries that are not yet acknowledged, and a count of acknowledged records."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._in_flight: deque[Sequence[BatchDelivery]] = deque()
        self.records = 0

    @property
    def summary(self) -> str:
        """Number of delivered records, and whether they were sent, stored or aborted."""
        if self._target.transactional is not False:
            return "no record is visible to readers of committed records, because the transaction is aborted"
        word = "sent" if self._target.acks == Acknowledgement.NONE else "stored"
        return f"{self.records} record{'s are' if self.records != 1 else ' is'} {word}"

    def add(self, deliveries: Sequence[BatchDelivery]) -> None:
        """Count the batches of one chunk as sent."""
        self._in_flight.append(deliveries)

    async def settle(self, chunks_max: int = 0) -> None:
        """Wait until at most `chunks_max` chunks are in flight; raise the first failure once every outcome is known."""
        failure: FairleadError | None = None
        while len(self._in_flight) > chunks_max or (failure and self._in_flight):
            for delivery in self._in_flight.popleft():
                try:
                    stored = await delivery
                except FairleadError as error:
                    failure = failure or error
                    continue
                self.records += delivery.record_count
                if self._target.report is not None:
                    self._print_stored(stored, delivery.record_count)
        if failure is not None:
            raise failure

    def _print_stored(self, stored: BatchMetadata, record_count: int) -> None:
        if self._target.report == "json":
            _print_line(stored, record_count)
            return
        place = f"{stored.topic}-{stored.partition}"
        if self._target.acks == Acknowledgement.NONE:
            typer.echo(f"{place} sent {record_count}")
        else:
            typer.echo(f"{place} offsets {stored.base_offset} to {stored.last_offset}")


def _print_line(stored: BatchMetadata, record_count: int) -> None:
    is_known = stored.base_offset >= 0
    line = {
        "topic": stored.topic,
        "partition": stored.partition,
        "records": record_count,
        "base_offset": stored.base_offset if is_known else None,
        "last_offset": stored.last_offset if is_known else None,
    }
    typer.echo(json.dumps(line, ensure_ascii=False))


async def _send(target: Target, source: Source, headers: list[tuple[str, bytes]]) -> None:
    async with Producer(
        target.bootstrap,
        acks=target.acks,
        compression=target.compression,
        transactional=target.transactional,
        transaction_timeout=target.transaction_timeout,
        retry_timeout=RETRY_TIMEOUT,
    ) as producer:
        if target.transactional is False:
            await _send_all(producer, target, source, headers)
        else:
            async with producer.transaction():
                await _send_all(producer, target, source, headers)


async def _send_all(
    producer: Producer, target: Target, source: Source, headers: list[tuple[str, bytes]]
) -> None:
    acknowledgements = Acknowledgements(target)
    at_once = target.report is not None or sys.stdin.isatty()
    line_bytes_max = await _open(producer, target)
    try:
        async for chunk in source(line_bytes_max):
            records = _with_headers(chunk, headers)
            acknowledgements.add(await producer.send_batch(target.topic, records, target.partition))
            await acknowledgements.settle(0 if at_once else CHUNKS_IN_FLIGHT)
        await acknowledgements.settle()
    except (FileError, FormatError) as error:
        await acknowledgements.settle()
        message = f"{error}; {acknowledgements.summary}"
        raise type(error)(message) from error
    except (FairleadError, asyncio.CancelledError):
        await _settle_rest(acknowledgements, target)
        raise


async def _settle_rest(acknowledgements: Acknowledgements, target: Target) -> None:
    with suppress(FairleadError):
        await acknowledgements.settle()
    rest = "; records read after them are not acknowledged" if target.transactional is False else ""
    typer.echo(f"{acknowledgements.summary}{rest}", err=True)


async def _open(producer: Producer, target: Target) -> int:
    """Find or create the topic before any input is read; return the maximum length of a line."""
    await producer.send_batch(target.topic, NOTHING, target.partition)
    if target.compression != Compression.NONE:
        return BATCH_BYTES_MAX
    async with Admin(target.bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
        topic = await admin.describe_topic(target.topic)
    return int(str(topic.config["max.message.bytes"].value))
