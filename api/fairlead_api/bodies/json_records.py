"""Records as JSON: conversion of produce bodies to columns, and of columns to fetched records.

The JSON calls of the broker and the CLI use this module, once per batch. Keys and values are bytes internally; the
`encoding` of the call determines the representation of keys and values in JSON. This module must not depend on Arrow:
columns are Python lists.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, cast

import msgspec

from fairlead_api.bodies.json_bodies import (
    ArrayDecoders,
    Request,
    check_record,
    decode_json,
    decode_kept_json,
    decode_slices,
)
from fairlead_api.bodies.json_slices import WHOLE_BYTES_MAX
from fairlead_api.bodies.metadata import Answer
from fairlead_api.bodies.payload_texts import is_long, json_line, long_base64, long_text, long_wrapped
from fairlead_api.excerpts import excerpt, shown
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import MICROSECONDS_PER_SECOND, format_second, parse_timestamp_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class Encoding(StrEnum):
    """Representation of the bytes of keys and values in JSON."""

    UTF8 = "utf8"
    """Keys and values are text. Bytes that are not UTF-8 are returned as `{"base64": "..."}`; requests may also contain
    this form.
    """
    JSON = "json"
    """Keys and values are any JSON values; the stored bytes are the JSON text. Bytes that are not JSON, and JSON that
    no produce request could contain, are returned as `{"base64": "..."}`."""
    BASE64 = "base64"
    """Keys and values are text in base64 with padding."""


class Base64(Request, frozen=True, kw_only=True):
    """Bytes that are not text, encoded in base64."""

    base64: str


Text = str | Base64 | None
HeaderPairs = list[tuple[str, Text]]
_NULL: Final = msgspec.Raw(b"null")
_ARRAY: Final = re.compile(rb"[ \t\r\n]*\[")


class JsonRecord(Request, frozen=True, kw_only=True):
    """Record of a produce body; `value` is required, and null is a tombstone."""

    key: Text = None
    value: Text
    headers: HeaderPairs | None = None
    timestamp: int | str | None = None


class JsonValueRecord(Request, frozen=True, kw_only=True):
    """Record with any JSON values as key and value, kept as text; a null key means no key, a null value a tombstone."""

    # A default factory is used because a default of type Raw cannot be written to a schema.
    key: msgspec.Raw = msgspec.field(default_factory=lambda: _NULL)
    value: msgspec.Raw
    headers: HeaderPairs | None = None
    timestamp: int | str | None = None


class JsonProduceRequest(Request, frozen=True, kw_only=True):
    """Produce body as an object; a plain array of records is also accepted."""

    records: list[JsonRecord]


class JsonValueProduceRequest(Request, frozen=True, kw_only=True):
    """Produce body as an object with `encoding=json`."""

    records: list[JsonValueRecord]


class RecordColumns(msgspec.Struct, frozen=True, gc=False):
    """Columns of the records of a produce request, of equal length; a timestamp of None means the current time."""

    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps_us: list[int | None]
    headers: list[list[tuple[str, bytes | None]] | None]

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.values)


@dataclass(frozen=True, slots=True)
class FetchedColumns:
    """Columns of the records of a fetched batch, of equal length, with the timestamps that consumers see."""

    offsets: Sequence[int]
    timestamps_us: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None]


class FetchedRecord(Answer, frozen=True, kw_only=True):
    """Record in a JSON answer to a fetch; the encoding determines the types of key and value."""

    partition: int
    offset: int
    timestamp: str
    key: object
    value: object
    headers: list[tuple[str, object]]


class JsonFetchAnswer(Answer, frozen=True, kw_only=True):
    """JSON answer to a fetch from one partition."""

    records: list[FetchedRecord]
    next_offset: int
    high_watermark: int
    log_start_offset: int


_TEXT_OBJECT: Final = msgspec.json.Decoder(JsonProduceRequest)
_TEXT_ARRAY: Final = msgspec.json.Decoder(list[JsonRecord])
_VALUE_OBJECT: Final = msgspec.json.Decoder(JsonValueProduceRequest)
_VALUE_ARRAY: Final = msgspec.json.Decoder(list[JsonValueRecord])
_TEXT_LINE: Final = msgspec.json.Decoder(JsonRecord)
_VALUE_LINE: Final = msgspec.json.Decoder(JsonValueRecord)
_TEXT_SLICES: Final = (
    ArrayDecoders(_TEXT_ARRAY, cast("msgspec.json.Decoder[object]", _TEXT_OBJECT), "records"),
    ArrayDecoders(_TEXT_ARRAY, cast("msgspec.json.Decoder[object]", _TEXT_ARRAY)),
)
"""Decoders of large bodies, by whether the body is an array."""
_VALUE_SLICES: Final = (
    ArrayDecoders(_VALUE_ARRAY, cast("msgspec.json.Decoder[object]", _VALUE_OBJECT), "records", kept=True),
    ArrayDecoders(_VALUE_ARRAY, cast("msgspec.json.Decoder[object]", _VALUE_ARRAY), kept=True),
)
"""Decoders of large bodies with `encoding=json`, by whether the body is an array."""


def parse_records(body: bytes | memoryview, encoding: Encoding = Encoding.UTF8) -> RecordColumns:
    """Return the records of a JSON produce body, an object with `records` or a plain array, as columns.

    Raises `malformed_request` and `unknown_option` with the path, and `invalid_record` with the index of a record that
    has invalid base64. This function allows a body without records; the caller decides whether
    to accept the body.
    """
    plain = _ARRAY.match(body) is not None
    if encoding is Encoding.JSON:
        values = (
            decode_kept_json(_VALUE_ARRAY, body) if plain else decode_kept_json(_VALUE_OBJECT, body).records
        )
        return _from_values(values)
    texts = decode_json(_TEXT_ARRAY, body) if plain else decode_json(_TEXT_OBJECT, body).records
    return _from_texts(texts, encoding)


def parse_record_slices(body: bytes, encoding: Encoding = Encoding.UTF8) -> Iterator[RecordColumns]:
    """Yield the records of a JSON produce body in slices; a small body has one slice.

    Each slice is parsed when the caller requests it, which takes about ten milliseconds. Raises the problems of
    `parse_records`, and `body_too_large` for a record of more than 2 MiB of text.
    """
    if len(body) <= WHOLE_BYTES_MAX:
        yield parse_records(body, encoding)
        return
    first, plain = 0, _ARRAY.match(body) is not None
    if encoding is Encoding.JSON:
        for values in decode_slices(_VALUE_SLICES[plain], body):
            yield _from_values(values, first)
            first += len(values)
    else:
        for texts in decode_slices(_TEXT_SLICES[plain], body):
            yield _from_texts(texts, encoding, first)
            first += len(texts)


def parse_record_lines(
    lines: Sequence[tuple[int, bytes]], encoding: Encoding = Encoding.UTF8
) -> RecordColumns:
    """Return the records of numbered lines, each of which is a JSON object, as columns.

    Raises the problems of `parse_records` with the line number.
    """
    try:
        return _from_lines([line for _, line in lines], encoding)
    except ProblemError:
        refusals = ((number, _refusal_of(line, encoding)) for number, line in lines)
        number, problem = next((number, problem) for number, problem in refusals if problem is not None)
        raise _in_line(number, problem) from problem


def _refusal_of(line: bytes, encoding: Encoding) -> ProblemError | None:
    try:
        _from_lines([line], encoding)
    except ProblemError as problem:
        return problem
    return None


def _from_lines(lines: Sequence[bytes], encoding: Encoding) -> RecordColumns:
    for line in lines:
        check_record(line)
    if encoding is Encoding.JSON:
        return _from_values([decode_kept_json(_VALUE_LINE, line) for line in lines])
    return _from_texts([decode_json(_TEXT_LINE, line) for line in lines], encoding)


def _in_line(number: int, problem: ProblemError) -> ProblemError:
    return ProblemError(
        problem.code, f"line {number}: {problem.detail}", data={**problem.data, "line": number}
    )


def _from_values(values: Sequence[JsonValueRecord], first: int = 0) -> RecordColumns:
    """Return records as columns; `first` is the index of the first record in its request."""
    return RecordColumns(
        keys=[_json_bytes(record.key) for record in values],
        values=[_json_bytes(record.value) for record in values],
        timestamps_us=_timestamps(values, first),
        headers=_headers(values, first),
    )


def _from_texts(texts: Sequence[JsonRecord], encoding: Encoding, first: int = 0) -> RecordColumns:
    """Return records as columns; `first` is the index of the first record in its request."""
    to_bytes = _base64_bytes if encoding is Encoding.BASE64 else _text_bytes
    return RecordColumns(
        keys=_column("key", [record.key for record in texts], to_bytes, first),
        values=_column("value", [record.value for record in texts], to_bytes, first),
        timestamps_us=_timestamps(texts, first),
        headers=_headers(texts, first),
    )


def fetched_records(
    partition: int, columns: FetchedColumns, encoding: Encoding = Encoding.UTF8
) -> list[FetchedRecord]:
    """Return the records of a fetched batch in the format of a JSON answer.

    Raises TextTooLargeError for a key or value whose text is too large.
    """
    present = _PRESENTED[encoding]
    return [
        FetchedRecord(
            partition=partition,
            offset=offset,
            timestamp=timestamp,
            key=key,
            value=value,
            headers=[] if headers is None else [(name, _as_text(payload)) for name, payload in headers],
        )
        for offset, timestamp, key, value, headers in zip(
            columns.offsets,
            _formatted(columns.timestamps_us),
            map(present, columns.keys),
            map(present, columns.values),
            columns.headers,
            strict=True,
        )
    ]


def _column(
    name: str, texts: Iterable[Text], to_bytes: Callable[[Text], bytes | None], first: int
) -> list[bytes | None]:
    # A loop is used instead of a comprehension, so that after a failure the length of the list is the index of the
    # invalid record.
    payloads: list[bytes | None] = []
    text: Text = None
    try:
        for text in texts:
            payloads.append(to_bytes(text))
    except ValueError as error:  # invalid base64 raises binascii.Error, and text that is not ASCII ValueError
        sent, record = text.base64 if isinstance(text, Base64) else text, first + len(payloads)
        raise ProblemError(
            "invalid_record",
            f"{name} {shown(sent)} of record {record} is not base64: {error}",
            data={"record": record, "parameter": name, "value": excerpt(sent)},
        ) from error
    return payloads


def _text_bytes(text: Text) -> bytes | None:
    if isinstance(text, str):
        return text.encode()
    return None if text is None else b64decode(text.base64, validate=True)


def _base64_bytes(text: Text) -> bytes | None:
    if isinstance(text, str):
        return b64decode(text, validate=True)
    return None if text is None else b64decode(text.base64, validate=True)


def _json_bytes(raw: msgspec.Raw) -> bytes | None:
    text = bytes(raw)
    return None if text == b"null" else text


def _timestamps(records: Sequence[JsonRecord | JsonValueRecord], first: int) -> list[int | None]:
    return [
        None
        if record.timestamp is None
        else parse_timestamp_us(record.timestamp, f"timestamp of record {index}")
        for index, record in enumerate(records, first)
    ]


def _headers(
    records: Sequence[JsonRecord | JsonValueRecord], first: int
) -> list[list[tuple[str, bytes | None]] | None]:
    return [
        _pairs(index, record.headers) if record.headers else None
        for index, record in enumerate(records, first)
    ]


def _pairs(index: int, headers: HeaderPairs) -> list[tuple[str, bytes | None]]:
    try:
        return [(name, _text_bytes(payload)) for name, payload in headers]
    except ValueError as error:  # invalid base64 raises binascii.Error, and text that is not ASCII ValueError
        raise ProblemError(
            "invalid_record",
            f"a header of record {index} is not base64: {error}",
            data={"record": index, "parameter": "headers"},
        ) from error


def _formatted(timestamps_us: Iterable[int]) -> list[str]:
    """Return formatted timestamps; the text of a second is cached, since adjacent records often share the second."""
    texts: list[str] = []
    current, prefix = None, ""
    for timestamp_us in timestamps_us:
        second, microsecond = divmod(timestamp_us, MICROSECONDS_PER_SECOND)
        if second != current:
            current, prefix = second, format_second(second)
        texts.append(f"{prefix}.{microsecond:06d}Z")
    return texts


def _as_text(payload: bytes | None) -> object:
    if payload is None:
        return None
    if is_long(payload):
        return long_text(payload)
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return _wrapped(payload)


def _as_json(payload: bytes | None) -> object:
    if payload is None:
        return None
    text = json_line(payload)
    return _wrapped(payload) if text is None else msgspec.Raw(text)


def _as_base64(payload: bytes | None) -> object:
    if payload is None:
        return None
    return long_base64(payload) if is_long(payload) else b64encode(payload).decode("ascii")


def _wrapped(payload: bytes) -> Base64 | msgspec.Raw:
    if is_long(payload):
        return long_wrapped(payload)
    return Base64(base64=b64encode(payload).decode("ascii"))


_PRESENTED: Final[dict[Encoding, Callable[[bytes | None], object]]] = {
    Encoding.UTF8: _as_text,
    Encoding.JSON: _as_json,
    Encoding.BASE64: _as_base64,
}
