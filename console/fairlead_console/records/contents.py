"""Contents of records in readable form: text whose special characters are visible, and hexadecimal lines. Pure.

Records are written by programs that the reader does not know. A character that a browser would not show as itself, or
that changes how its neighbours are shown, becomes a mark with its name: control characters, marks of direction, spaces
without width, stacked accents, and bytes that are not UTF-8. Templates escape everything else.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_ACCENTS: Final = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_SPECIAL: Final = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and line feed
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # no width, or a direction
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3"
    "\udc80-\udcff"  # bytes that are not UTF-8, as surrogates
    "\ue000-\uf8ff\U000f0000-\U0010ffff"  # private use
    "]+"
    f"|(?<=[{_ACCENTS}]{{4}})[{_ACCENTS}]+"  # stacked accents, which cover other lines
)
_NAMES: Final = {"\x00": "NUL", "\r": "CR", "\x1b": "ESC", "\x7f": "DEL", "\ufeff": "BOM"}
_MARKED_MAX: Final = 64
"""Maximum number of special characters that one mark names."""
ROW_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a text: characters that are shown as they are, or the names of special characters."""

    text: str
    is_special: bool = False


def runs(data: bytes, *, on_one_line: bool = False) -> list[Run]:
    """Return the parts of a text; on one line, line feeds and tabs are spaces."""
    text = data.decode("utf-8", "surrogateescape")
    if on_one_line:
        text = text.replace("\n", " ").replace("\t", " ")
    return list(_runs(text))


def runs_of_text(text: str) -> list[Run]:
    """Return the parts of a text that is already decoded."""
    return list(_runs(text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")))


def _runs(text: str) -> Iterator[Run]:
    at = 0
    for found in _SPECIAL.finditer(text):
        if found.start() > at:
            yield Run(text[at : found.start()])
        special = found[0]
        names = " ".join(_name(each) for each in special[:_MARKED_MAX])
        more = len(special) - _MARKED_MAX
        yield Run(names if more <= 0 else f"{names} and {more:,} more", is_special=True)
        at = found.end()
    if at < len(text):
        yield Run(text[at:])


def _name(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"{code - 0xDC00:02X}"
    if character in _NAMES:
        return _NAMES[character]
    if unicodedata.category(character) == "Cc":
        return f"{code:02X}"
    return f"U+{code:04X}"


def is_text(data: bytes) -> bool:
    """Return whether bytes are UTF-8 without control characters; the last character may be cut off."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or error.start < len(data) - 3:
            return False
        text = data[: error.start].decode()
    return not re.search("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]", text)


def hexadecimal(data: bytes) -> str:
    """Return lines with an offset, sixteen bytes, and the printable ASCII characters among them."""
    lines = []
    for at in range(0, len(data), ROW_BYTES):
        row = data[at : at + ROW_BYTES]
        first, second = row[:8].hex(" "), row[8:].hex(" ")
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{at:08x}  {first:<23}  {second:<23}  {letters}")
    return "\n".join(lines)
