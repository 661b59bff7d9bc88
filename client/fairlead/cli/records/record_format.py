r"""The percent format of `-f`, which describes records as text, for printing and for parsing.

`%t` topic, `%p` partition, `%o` offset, `%k` key, `%v` value, `%h` headers, `%d` timestamp (RFC 3339), `%%` a percent
sign; `\n`, `\t`, `\r`, `\0`, `\\` have their usual meaning. `consume` prints and `produce` parses lines in this format;
for parsing, only `%k` and `%v` have a meaning. The module performs no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fairlead.cli.session import UsageError
from fairlead_api.timestamps import format_timestamp

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_TOKEN = re.compile(r"%(?P<verb>.?)|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.DOTALL)


class FormatError(UsageError):
    """A format is invalid; the message names the error and the allowed values."""


@dataclass(frozen=True, slots=True)
class PrintedRecord:
    """Fields of a record that a format can print.

    Key and value are already in the encoding that the user has chosen.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


_VERBS: dict[str, Callable[[PrintedRecord], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "d": lambda record: format_timestamp(record.timestamp_us).encode(),
}


def shown(text: bytes, letters_max: int = 80) -> str:
    """Return bytes as text for a message: bytes that are not text are escaped, and long text is truncated."""
    whole = text[: 4 * letters_max].decode(errors="backslashreplace")
    plain = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in whole)
    return plain if len(plain) <= letters_max else plain[:letters_max] + "..."


def _pieces(template: str, verbs: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of the template as pairs (whether the part is a verb, text), with escapes resolved."""
    for token in _TOKEN.finditer(template):
        verb, escape, text = token.group("verb", "escape", "text")
        if text is not None:
            yield False, text
        elif escape is not None:
            if escape not in _ESCAPES:
                msg = f"unknown escape '\\{escape}' in {template!r}; allowed: \\n \\t \\r \\0 \\\\"
                raise FormatError(msg)
            yield False, _ESCAPES[escape]
        elif verb == "%":
            yield False, "%"
        elif verb and verb in verbs:
            yield True, verb
        else:
            allowed = " ".join(f"%{known}" for known in verbs)
            msg = f"unknown verb '%{verb}' in {template!r}; allowed: {allowed} %%"
            raise FormatError(msg)


def printer(template: str) -> Callable[[PrintedRecord], bytes]:
    """Return a function that formats a record according to `template`.

    Raises:
        FormatError: an unknown verb or escape.
    """
    parts = [
        _VERBS[text] if is_verb else _constant(text.encode())
        for is_verb, text in _pieces(template, "".join(_VERBS))
    ]
    return lambda record: b"".join(part(record) for part in parts)


def _constant(text: bytes) -> Callable[[PrintedRecord], bytes]:
    return lambda _record: text


def parser(template: str) -> Callable[[bytes], tuple[bytes | None, bytes | None]]:
    """Return a function that splits a line into (key, value) according to `template`.

    A trailing line break in the template represents the end of the line.

    Raises:
        FormatError: an unknown verb or escape, no `%v`, a verb twice, or two adjacent verbs.
    """
    pattern, seen, after_verb = b"", "", False
    for is_verb, text in _pieces(template.removesuffix("\\n"), "kv"):
        if is_verb:
            if text in seen:
                msg = f"%{text} is repeated in {template!r}"
                raise FormatError(msg)
            if after_verb:
                msg = f"two verbs are adjacent in {template!r}, so lines cannot be split"
                raise FormatError(msg)
            seen += text
            pattern += b"(?P<%s>.*?)" % text.encode()
        else:
            pattern += re.escape(text.encode())
        after_verb = is_verb
    if "v" not in seen:
        msg = f"{template!r} has no %v, so records would have no value"
        raise FormatError(msg)
    compiled = re.compile(pattern, re.DOTALL)

    def parse(line: bytes) -> tuple[bytes | None, bytes | None]:
        found = compiled.fullmatch(line)
        if found is None:
            msg = f"'{shown(line)}' does not fit the format '{template}'"
            raise FormatError(msg)
        groups = found.groupdict()
        return groups.get("k"), groups["v"]

    return parse
