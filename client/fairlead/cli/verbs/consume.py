"""`fairlead consume`: prints records on standard output. The command joins a group only with `-g`."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from fairlead import Consumer, ConsumerBatch, Record, TopicPartition
from fairlead.cli.options import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    Encoding,
    EncodingOption,
    IsolationOption,
    TopicName,
)
from fairlead.cli.records.positions import Position, PositionError, ReadRange, read_range
from fairlead.cli.records.record_format import FormatError, PrintedRecord, printer
from fairlead.cli.session import RETRY_TIMEOUT, fail_usage, run
from fairlead.timestamps import datetime_of
from fairlead_api.bodies.payload_texts import json_line
from fairlead_api.bodies.requests import Isolation
from fairlead_api.identifiers import PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp

Line = Callable[[PrintedRecord], bytes]


OffsetOption = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--offset",
        help="start or earliest, end or latest, an offset, -N for the last N, @time or @time:time.",
    ),
]


GroupOption = Annotated[
    str | None,
    typer.Option("-g", "--group", help="Join this group, share its partitions, and commit printed records."),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="Print the records of this file, which a broker wrote before it cut a mirror, and ask no broker.",
    ),
]


def consume(
    topic: TopicName,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="The same as -o start.")] = False,
    offset: OffsetOption = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="Stop after this many records.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("-e", "--exit", help="Stop at the end offsets that existed at the start.")
    ] = False,
    line_format: Annotated[
        str | None,
        typer.Option(
            "-f", "--format", help="%t topic %p partition %o offset %k key %v value %h headers %d time."
        ),
    ] = None,
    output: Annotated[str | None, typer.Option("--output", help="json: one JSON object per line.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Read this partition only.")
    ] = None,
    group: GroupOption = None,
    isolation: IsolationOption = "read_uncommitted",
    encoding: EncodingOption = Encoding.UTF8,
    file: FileOption = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    r"""Print the records of a topic as they arrive, one value per line; Ctrl-C stops.

    Without -g, the command joins no group and does not affect other consumers. By default, reading starts at the end of
    the log. In a group, reading continues at the committed offsets, and -o start or end selects the start of partitions
    without a committed offset.

    Example: fairlead consume orders --from-beginning -e -f '%k %v\n'

    Example: fairlead consume orders -g billing --from-beginning -n 100

    Example: fairlead consume orders --isolation read_committed --from-beginning -e

    Example: fairlead consume orders --file 0-120.batches --output json
    """
    try:
        whole = _range(offset, from_beginning=from_beginning)
        line = _line(line_format, output, encoding)
    except (PositionError, FormatError) as error:
        fail_usage(str(error))
    if file is not None:
        _print_file(file, topic, count, line)
        return
    if group is None:
        reading = _print_records(bootstrap, topic, partition, whole, exit_at_end, count, line, isolation)
    elif partition is not None:
        fail_usage("--partition reads without a group; in a group the members share the partitions")
    elif whole.stop is not None or whole.start.kind not in ("earliest", "latest"):
        fail_usage("in a group, -o must be start or end; `fairlead group reset` moves the offsets of a group")
    else:
        start = whole.start.kind
        reading = _print_as_member(bootstrap, group, topic, start, exit_at_end, count, line, isolation)
    run(reading, is_endless=True)


def _range(offset: str | None, *, from_beginning: bool) -> ReadRange:
    if from_beginning and offset is not None:
        msg = "--from-beginning and -o both set the start; give only one of them"
        raise PositionError(msg)
    return read_range("start" if from_beginning else offset or "end")


def _line(line_format: str | None, output: str | None, encoding: Encoding) -> Line:
    if output not in (None, "json"):
        msg = f"--output {output!r} is not supported by this command; allowed: json"
        raise FormatError(msg)
    if output == "json":
        if line_format is not None:
            msg = "-f and --output json both set the format; give only one of them"
            raise FormatError(msg)
        return lambda record: _as_json(record, encoding)
    text = printer(line_format if line_format is not None else "%v\\n")
    return (lambda record: text(_in_base64(record))) if encoding is Encoding.BASE64 else text


def _in_base64(record: PrintedRecord) -> PrintedRecord:
    key = None if record.key is None else base64.b64encode(record.key)
    value = None if record.value is None else base64.b64encode(record.value)
    return PrintedRecord(
        record.topic, record.partition, record.offset, record.timestamp_us, key, value, record.headers
    )


def _as_json(record: PrintedRecord, encoding: Encoding) -> bytes:
    headers = [f"[{_json_text(name)}, {_json_bytes(value, Encoding.UTF8)}]" for name, value in record.headers]
    members = {
        "topic": _json_text(record.topic),
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": _json_text(format_timestamp(record.timestamp_us)),
        "key": _json_bytes(record.key, encoding),
        "value": _json_bytes(record.value, encoding),
        "headers": f"[{', '.join(headers)}]",
    }
    return f"{{{', '.join(f'{_json_text(name)}: {text}' for name, text in members.items())}}}\n".encode()


def _json_bytes(data: bytes | None, encoding: Encoding) -> str:
    """Return bytes as a JSON value: as text, in base64, or unchanged if the bytes are a JSON document."""
    if data is None:
        return "null"
    if encoding is Encoding.BASE64:
        return _json_text(base64.b64encode(data).decode())
    if encoding is Encoding.JSON:
        document = json_line(data)
        if document is not None:
            return document.decode()
    else:
        with suppress(UnicodeDecodeError):
            return _json_text(data.decode())
    return _json_text({"base64": base64.b64encode(data).decode()})


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _print_file(path: Path, topic: str, count: int | None, line: Line) -> None:
    from fairlead.cli.records.batch_files import NotBatchesError, batches_of

    try:
        records = (record for batch in batches_of(path, topic) for record in batch)
        sys.stdout.buffer.writelines(line(record) for record in islice(records, count))
    except OSError as error:
        fail_usage(f"{path} cannot be read: {error.strerror}")
    except (NotBatchesError, ProblemError) as error:
        fail_usage(str(error))


async def _print_records(
    bootstrap: str,
    topic: str,
    partition: int | None,
    whole: ReadRange,
    exit_at_end: bool,
    count: int | None,
    line: Line,
    isolation: Isolation,
) -> None:
    left = count
    async with Consumer(bootstrap, isolation=isolation, retry_timeout=RETRY_TIMEOUT) as consumer:
        chosen = [] if partition is None else [TopicPartition(topic, PartitionIndex(partition))]
        await consumer.assign(chosen, topic=topic if partition is None else None)
        until = await _seek(consumer, whole, exit_at_end)
        async for batch in consumer.batches(until):
            records = batch if left is None else islice(batch, left)
            lines = [line(_printed(record)) for record in records]
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()
            if left is not None:
                left -= len(lines)
            if left == 0:
                return


async def _print_as_member(
    bootstrap: str,
    group: str,
    topic: str,
    start: Literal["earliest", "latest"],
    exit_at_end: bool,
    count: int | None,
    line: Line,
    isolation: Isolation,
) -> None:
    from fairlead.cli.group_reading import GroupReading

    def print_batch(batch: ConsumerBatch, left: int | None) -> int:
        records = list(islice(batch, left))
        sys.stdout.buffer.write(b"".join(line(_printed(record)) for record in records))
        sys.stdout.buffer.flush()
        return batch.next_offset if len(records) == len(batch) else records[-1].offset + 1

    reading = GroupReading(bootstrap, group, topic, start, print_batch, isolation)
    await reading.run(count=count, exit_at_end=exit_at_end)


async def _seek(consumer: Consumer, whole: ReadRange, exit_at_end: bool) -> dict[TopicPartition, int] | None:
    """Move every partition to the start of the range; return the end offsets, or None if the range has no end."""
    ends = await consumer.end_offsets()
    for place in consumer.assignment:
        first = consumer.position(place)
        match whole.start:
            case Position("latest"):
                await consumer.seek(place, ends[place])
            case Position("offset", offset):
                await consumer.seek(place, _within(place, offset, first, ends[place]))
            case Position("last", count):
                await consumer.seek(place, max(first, ends[place] - count))
            case Position("time", timestamp_us):
                await consumer.seek(place, datetime_of(timestamp_us))
            case _:
                pass  # The assignment has already set the position for earliest.
    if whole.stop is not None:
        stop = datetime_of(whole.stop.number)
        found = await consumer.offsets_for_times(dict.fromkeys(consumer.assignment, stop))
        return {place: ends[place] if at is None else at.offset for place, at in found.items()}
    return ends if exit_at_end else None


def _within(place: TopicPartition, offset: int, first: int, end: int) -> int:
    """Return the offset at which reading starts; report an offset outside the log and use the nearest one."""
    nearest = min(max(offset, first), end)
    if nearest != offset:
        edge = f"ends at offset {end}" if offset > end else f"begins at offset {first}"
        notice = f"{edge}; there is no offset {offset}, reading starts at {nearest}"
        typer.echo(f"{place.topic}-{place.partition} {notice}", err=True)
    return nearest


def _printed(record: Record) -> PrintedRecord:
    return PrintedRecord(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_us,
        record.key,
        record.value,
        tuple(record.headers),
    )
