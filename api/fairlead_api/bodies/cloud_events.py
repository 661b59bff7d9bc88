"""Conversion of CloudEvents 1.0 to records, for the three modes of the HTTP binding.

In every mode, a record is built as in the binary mode of CloudEvents' Kafka binding: the value is the event's data,
each attribute is a header `ce_<name>`, `datacontenttype` is the header `content-type`, and the key is the extension
`partitionkey`. The timestamp of the record is the time of the event. This module must not depend on an HTTP library:
headers are a mapping.
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote_to_bytes

import msgspec

from fairlead_api.bodies.json_bodies import ArrayDecoders, check_record, decode_kept_json, decode_slices
from fairlead_api.bodies.json_records import RecordColumns
from fairlead_api.bodies.json_slices import WHOLE_BYTES_MAX
from fairlead_api.excerpts import excerpt, shown
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import parse_timestamp_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SPECIFICATION: Final = "1.0"
HEADER_PREFIX: Final = "ce-"
"""Prefix of the HTTP headers of the binary mode."""
_REQUIRED: Final = ("specversion", "id", "source", "type")
_NAME: Final = re.compile(r"[a-z0-9]{1,64}")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_JSON_TYPE: Final = re.compile(r"[^;]*[/+]json *(;.*)?", re.IGNORECASE)
_EVENT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EVENTS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_BATCH: Final = ArrayDecoders(_EVENTS, cast("msgspec.json.Decoder[object]", _EVENTS), kept=True)
_ATTRIBUTE: Final = msgspec.json.Decoder(str | bool | int | None)
_NULL: Final = b"null"


class _Columns:
    """Builder of record columns from events."""

    def __init__(self, first: int = 0) -> None:
        """`first` is the index of the first event in its request."""
        self._first = first
        self._columns = RecordColumns(keys=[], values=[], timestamps_us=[], headers=[])

    def add(self, attributes: Mapping[str, str], value: bytes | None) -> None:
        """Add an event with attributes as text. Raises `invalid_record`, which names the attribute."""
        number = self._first + len(self._columns)
        for name in _REQUIRED:
            if not attributes.get(name):
                raise _refusal(number, name, None, "text that is not empty")
        if attributes["specversion"] != SPECIFICATION:
            raise _refusal(number, "specversion", attributes["specversion"], SPECIFICATION)
        for name in attributes:
            if not _NAME.fullmatch(name):
                raise _refusal(number, name, None, "attributes named by lower-case letters and digits")
        time, key = attributes.get("time"), attributes.get("partitionkey")
        headers: list[tuple[str, bytes | None]] = [
            ("content-type" if name == "datacontenttype" else f"ce_{name}", text.encode())
            for name, text in attributes.items()
        ]
        self._columns.keys.append(None if key is None else key.encode())
        self._columns.values.append(value)
        self._columns.timestamps_us.append(
            None if time is None else parse_timestamp_us(time, f"time of event {number}")
        )
        self._columns.headers.append(headers)

    def finished(self) -> RecordColumns:
        """Return the columns of all added events."""
        return self._columns


def parse_event(body: bytes | memoryview) -> RecordColumns:
    """Return the event of a structured body. Raises `malformed_request`, `body_too_large` and `invalid_record`."""
    check_record(bytes(body))
    return _structured([decode_kept_json(_EVENT, body)])


def parse_event_batch(body: bytes | memoryview) -> RecordColumns:
    """Return the events of a batch, possibly none. Raises the problems of `parse_event` with the event's index."""
    events = decode_kept_json(_EVENTS, body)
    return _structured(events)


def parse_event_slices(body: bytes) -> Iterator[RecordColumns]:
    """Yield the events of a batch in slices, like `parse_record_slices`."""
    if len(body) <= WHOLE_BYTES_MAX:
        yield parse_event_batch(body)
        return
    first = 0
    for events in decode_slices(_BATCH, body):
        yield _structured(events, first)
        first += len(events)


def parse_event_headers(headers: Mapping[str, str], content_type: str, body: bytes) -> RecordColumns:
    """Return the event of a binary-mode request: headers `ce-<name>` in lower case, and the body as the event's data.

    Header values are Latin-1 text, one character per byte. Values may contain percent-encoded UTF-8 and may be quoted
    as a whole. Raises `invalid_record`.
    """
    attributes = {
        name.removeprefix(HEADER_PREFIX): _unquoted(name, text)
        for name, text in headers.items()
        if name.startswith(HEADER_PREFIX)
    }
    if content_type:
        attributes["datacontenttype"] = _utf8("datacontenttype", content_type.encode("latin-1"))
    columns = _Columns()
    columns.add(attributes, bytes(body) if body else None)
    return columns.finished()


def _structured(events: Iterable[dict[str, msgspec.Raw]], first: int = 0) -> RecordColumns:
    columns = _Columns(first)
    for number, event in enumerate(events, first):
        data, packed = _given(event.pop("data", None)), _given(event.pop("data_base64", None))
        attributes = {
            name: text for name, raw in event.items() if (text := _attribute(number, name, raw)) is not None
        }
        if data is not None and packed is not None:
            raise _refusal(number, "data_base64", None, "data or data_base64, not both")
        given = _data(data, attributes.get("datacontenttype"))
        columns.add(attributes, given if packed is None else _unpacked(number, packed))
    return columns.finished()


def _attribute(number: int, name: str, raw: msgspec.Raw) -> str | None:
    """Return the canonical text of an attribute; None for null, which represents an absent attribute."""
    try:
        value = _ATTRIBUTE.decode(raw)
    except msgspec.DecodeError as error:
        raise _refusal(number, name, bytes(raw).decode(), "text, true, false or an integer") from error
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _given(member: msgspec.Raw | None) -> msgspec.Raw | None:
    """Return a member, or None if the member is absent or null."""
    return None if member is None or bytes(member) == _NULL else member


def _data(data: msgspec.Raw | None, content_type: str | None) -> bytes | None:
    """Return the bytes of `data`: its JSON text, or the contents of a string if the content type is not JSON."""
    if data is None:
        return None
    text = bytes(data)
    if content_type is not None and not _JSON_TYPE.fullmatch(content_type) and text.startswith(b'"'):
        return msgspec.json.decode(text, type=str).encode()
    return text


def _unpacked(number: int, packed: msgspec.Raw) -> bytes:
    try:
        return b64decode(msgspec.json.decode(packed, type=str), validate=True)
    except (msgspec.DecodeError, ValueError) as error:
        raise _refusal(number, "data_base64", bytes(packed).decode(), "text in base64") from error


def _unquoted(name: str, text: str) -> str:
    """Return the value of a header, unquoted and then percent-decoded (HTTP binding, 3.1.3.2)."""
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        text = _ESCAPED.sub(r"\1", quoted[1])
    return _utf8(name, unquote_to_bytes(text.encode("latin-1")))


def _utf8(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _refusal(0, name, value.decode("latin-1"), "percent-encoded UTF-8") from error


def _refusal(number: int, attribute: str, value: str | None, allowed: str) -> ProblemError:
    what = "is missing or not allowed" if value is None else f"{shown(value)} is not allowed"
    return ProblemError(
        "invalid_record",
        f"{shown(attribute)} of event {number} {what}; allowed: {allowed}",
        data={"record": number, "parameter": excerpt(attribute), "allowed": allowed},
    )
