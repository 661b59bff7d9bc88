"""Reading of records from the lines of standard input as they arrive, with a limit on the length of a line.

`produce` uses this module. After an invalid line, reading stops: the records before the line are yielded first, so that
a caller can store them and report the line. The module must not depend on brokers.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from fairlead.cli.options import Encoding
from fairlead.cli.records.record_format import FormatError, parser, shown
from fairlead_api.bodies.json_bodies import number_beyond

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# Maximum bytes per read. A terminal or a slow pipe returns fewer bytes, usually one line.
READ_BYTES = 1024 * 1024
BESIDE_A_LINE_BYTES = len(BYTE_ORDER_MARK + b"\r")  # Bytes that are buffered but are not part of the line.

Pair = tuple[bytes | None, bytes | None]
LineParser = Callable[[bytes], Pair]


class LineBuffer:
    """Buffer that splits bytes into lines and keeps the start of an incomplete line."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.held_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`, without their line breaks (a line feed, or CR LF)."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = self.take() + lines[0]
        if rest:
            self._parts.append(rest)
            self.held_bytes += len(rest)
        return [line.removesuffix(b"\r") for line in lines]

    def take(self) -> bytes:
        """Return the buffered bytes and clear the buffer."""
        held = b"".join(self._parts)
        self._parts.clear()
        self.held_bytes = 0
        return held


def line_parser(key: str | None, line_format: str | None, key_separator: str | None) -> LineParser:
    """Return the function that splits a line into (key, value), depending on the option that is set.

    Raises:
        FormatError: several options are given, or the format is invalid.
    """
    given = [option for option in (key, line_format, key_separator) if option is not None]
    if len(given) > 1:
        msg = "only one of -k, -f and --key-separator can define the key"
        raise FormatError(msg)
    if line_format is not None:
        return parser(line_format)
    if key_separator:
        escaped = key_separator.replace("%", "%%").replace("\\", "\\\\")
        return parser(f"%k{escaped}%v")
    # The key consists of the bytes that were typed, which need not be UTF-8.
    constant = None if key is None else os.fsencode(key)
    return lambda line: (constant, line)


def with_nulls(parse: LineParser, marker: str | None) -> LineParser:
    """Return `parse` with a key or value that equals the marker replaced by null."""
    if marker is None:
        return parse
    text = os.fsencode(marker)

    def parse_with_nulls(line: bytes) -> Pair:
        key, value = parse(line)
        return (None if key == text else key, None if value == text else value)

    return parse_with_nulls


def decoding(parse: LineParser, encoding: Encoding) -> LineParser:
    """Return `parse` with key and value decoded from base64 or checked as JSON, depending on the encoding."""
    if encoding is Encoding.UTF8:
        return parse
    decode = _from_base64 if encoding is Encoding.BASE64 else _checked_json

    def parse_and_decode(line: bytes) -> Pair:
        key, value = parse(line)
        return (None if key is None else decode(key), None if value is None else decode(value))

    return parse_and_decode


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # The call raises binascii.Error, or a plain ValueError for non-ASCII text.
        msg = f"'{shown(text)}' is not base64 ({error})"
        raise FormatError(msg) from error


def _checked_json(text: bytes) -> bytes:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        number = number_beyond(text)
        msg = f"'{shown(text)}' is not JSON ({error})"
        if number is not None:
            msg = f"{number} is not a number that JSON allows, in '{shown(text)}'"
        raise FormatError(msg) from error
    return text


async def read_records(
    data: AsyncIterator[bytes], parse: LineParser, line_bytes_max: int
) -> AsyncIterator[pa.RecordBatch]:
    """Yield the records of the lines in `data`; each item contains all records that have arrived.

    A byte order mark before the first line is removed if the line is text.

    Raises:
        FormatError: a line does not parse or is longer than `line_bytes_max`; the message contains the line number.
    """
    buffer, done = LineBuffer(), 0
    async for piece in data:
        lines = buffer.feed(piece)
        if lines and not done:
            lines[0] = without_mark(lines[0])
        pairs, problem = _parsed(lines, parse, line_bytes_max)
        if pairs:
            yield _columns(pairs)
        done += len(pairs)
        if problem is None and buffer.held_bytes > line_bytes_max + BESIDE_A_LINE_BYTES:
            problem = _too_long(line_bytes_max)
        if problem is not None:
            raise _numbered(problem, done + 1)
    last = buffer.take() if done else without_mark(buffer.take())
    if last:
        pairs, problem = _parsed([last], parse, line_bytes_max)
        if problem is not None:
            raise _numbered(problem, done + 1)
        yield _columns(pairs)


def _parsed(
    lines: Sequence[bytes], parse: LineParser, line_bytes_max: int
) -> tuple[list[Pair], FormatError | None]:
    """Return the records of the lines before the first invalid line, and the error of the invalid line."""
    pairs: list[Pair] = []
    try:
        for line in lines:
            if len(line) > line_bytes_max:
                return pairs, _too_long(line_bytes_max)
            pairs.append(parse(line))
    except FormatError as error:
        return pairs, error
    return pairs, None


def _too_long(line_bytes_max: int) -> FormatError:
    return FormatError(f"longer than the limit of {line_bytes_max} bytes for a batch")


def _numbered(problem: FormatError, line_number: int) -> FormatError:
    return FormatError(f"line {line_number}: {problem}")


def _columns(pairs: Sequence[Pair]) -> pa.RecordBatch:
    arrays = [pa.array([pair[column] for pair in pairs], pa.binary()) for column in (0, 1)]
    return pa.RecordBatch.from_arrays(arrays, names=["key", "value"])


async def standard_input() -> AsyncIterator[bytes]:
    """Yield the bytes of standard input as they arrive.

    No thread waits in `read`, because a blocking read cannot be interrupted and Ctrl-C would have no effect until the
    next line.
    """
    descriptor = sys.stdin.fileno()
    while True:
        await _readable(descriptor)
        data = os.read(descriptor, READ_BYTES)
        if not data:
            return
        yield data


async def _readable(descriptor: int) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:
        return  # A regular file is always readable, and epoll does not support regular files.
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def without_mark(first_line: bytes) -> bytes:
    """Return the first line without its byte order mark; a line that is not UTF-8 is not changed."""
    rest = first_line.removeprefix(BYTE_ORDER_MARK)
    try:
        rest.decode()
    except UnicodeDecodeError:
        return first_line
    return rest
