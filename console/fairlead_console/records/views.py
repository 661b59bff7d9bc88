"""View of a key, a value or a header on a page: a folded tree, text, hexadecimal lines, or a CloudEvent. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from fairlead_console.records.cloud_events import cloud_event
from fairlead_console.records.contents import Run, hexadecimal, is_text, runs, runs_of_text
from fairlead_console.records.found import Excerpt, FoundRecord
from fairlead_console.records.json_trees import Node, tree

View: TypeAlias = Literal["auto", "text", "json", "hex", "event"]
VIEWS: Final = {
    "auto": "As fits",
    "text": "Text",
    "json": "JSON",
    "hex": "Hexadecimal",
    "event": "CloudEvent",
}
LINE_BYTES: Final = 300
"""Number of bytes of a value that one line of a list shows."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A key or value as a page shows it; one of `tree`, `text` and `hexadecimal` is set, or only a note."""

    tree: Node | None = None
    text: list[Run] = field(default_factory=list)
    hexadecimal: str = ""
    note: str = ""
    """Reason why nothing, or a different view than the chosen one, is shown."""
    attributes: list[tuple[str, list[Run]]] = field(default_factory=list)
    """Attributes of a CloudEvent."""


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record with its contents in a view."""

    record: FoundRecord
    key: list[Run] | None
    line: list[Run]
    """Start of the value on one line."""
    value: Shown
    headers: list[tuple[list[Run], list[Run] | None]]


def shown_record(record: FoundRecord, view: View) -> ShownRecord:
    """Return a record as a list shows it."""
    key = None if record.key is None else runs(record.key.data[:LINE_BYTES], on_one_line=True)
    line = [] if record.value is None else runs(record.value.data[:LINE_BYTES], on_one_line=True)
    headers = [
        (runs_of_text(name), None if value is None else runs(value.data)) for name, value in record.headers
    ]
    return ShownRecord(record, key, line, shown(record.value, headers_of(record), view), headers)


def headers_of(record: FoundRecord) -> list[tuple[str, bytes | None]]:
    """Return the names and values of the headers."""
    return [(name, None if value is None else value.data) for name, value in record.headers]


def shown(excerpt: Excerpt | None, headers: Iterable[tuple[str, bytes | None]], view: View) -> Shown:
    """Return contents in the chosen view or, if they do not suit it, in another view with a note."""
    if view in ("auto", "event"):
        event = cloud_event(headers, None if excerpt is None else excerpt.data)
        if event is not None:
            data = None if event.data is None else Excerpt(event.data, len(event.data))
            inner = _as_fits(data)
            attributes = [(name, runs(text)) for name, text in event.attributes]
            return Shown(inner.tree, inner.text, inner.hexadecimal, inner.note, attributes)
        return _as_fits(excerpt, "This record is not a CloudEvent." if view == "event" else "")
    if excerpt is None or not excerpt.data:
        return _as_fits(excerpt)
    if view == "hex":
        return Shown(hexadecimal=hexadecimal(excerpt.data))
    if view == "json":
        found = None if excerpt.is_cut else tree(excerpt.data)
        if found is not None:
            return Shown(tree=found)
        reason = (
            "Only the start of the value is here." if excerpt.is_cut else "The value is not a JSON document."
        )
        return _as_fits(excerpt, reason)
    return Shown(text=runs(excerpt.data))


def _as_fits(excerpt: Excerpt | None, note: str = "") -> Shown:
    if excerpt is None:
        return Shown(note=f"{note} There is no value: null.".strip())
    if not excerpt.data:
        return Shown(note=f"{note} The value is empty.".strip())
    found = tree(excerpt.data) if excerpt.data[:1] in b"{[ \n\t\r" and not excerpt.is_cut else None
    if found is not None:
        return Shown(tree=found, note=note)
    if is_text(excerpt.data):
        return Shown(text=runs(excerpt.data), note=note)
    return Shown(hexadecimal=hexadecimal(excerpt.data), note=note)
