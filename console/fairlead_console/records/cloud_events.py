"""CloudEvents in records, in the binary and the structured mode of the Kafka binding. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

PREFIX: Final = "ce_"
STRUCTURED: Final = "application/cloudevents+json"
_REQUIRED: Final = ("specversion", "id", "source", "type")


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """Attributes of an event, required attributes first, and its data."""

    attributes: list[tuple[str, bytes]]
    data: bytes | None


def cloud_event(headers: Iterable[tuple[str, bytes | None]], value: bytes | None) -> CloudEvent | None:
    """Return the event of a record; None if the record is not an event."""
    found = {name.lower(): text for name, text in headers if text is not None}
    attributes = {name.removeprefix(PREFIX): text for name, text in found.items() if name.startswith(PREFIX)}
    media_type = found.get("content-type")
    if "specversion" in attributes:
        if media_type is not None:
            attributes["datacontenttype"] = media_type
        return CloudEvent(_ordered(attributes), value)
    if media_type is None or value is None or not media_type.decode("latin-1").lower().startswith(STRUCTURED):
        return None
    return _structured(value)


def _structured(value: bytes) -> CloudEvent | None:
    try:
        members = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return None
    if "specversion" not in members:
        return None
    data: bytes | None = bytes(members.pop("data")) if "data" in members else None
    if "data_base64" in members:
        try:
            data = base64.b64decode(msgspec.json.decode(members.pop("data_base64"), type=str))
        except (msgspec.MsgspecError, binascii.Error):
            return None
    return CloudEvent(_ordered({name: _text(bytes(raw)) for name, raw in members.items()}), data)


def _text(raw: bytes) -> bytes:
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return raw
    return decoded.encode(errors="replace") if isinstance(decoded, str) else raw


def _ordered(attributes: dict[str, bytes]) -> list[tuple[str, bytes]]:
    first = [(name, attributes[name]) for name in _REQUIRED if name in attributes]
    return first + sorted((name, text) for name, text in attributes.items() if name not in _REQUIRED)
