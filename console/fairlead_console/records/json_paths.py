"""JSON paths of filters, such as `$.customer.id` or `$.total >= 100`: pure.

A path is a subset of RFC 9535: members, indexes and `*`, followed by an optional comparison with a JSON value. The
time to evaluate a path depends only on the size of the document.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

_STEP: Final = re.compile(
    r"""\.(?P<name>[^\s.\[\]'"=!<>*]+) | \[\s*(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\s*\]
      | \[\s*(?P<index>-?[0-9]{1,9})\s*\] | (?P<every>\.\*|\[\s*\*\s*\])""",
    re.VERBOSE,
)
_COMPARISON: Final = re.compile(r"\s*(?P<sign>==|!=|<=|>=|<|>)\s*(?P<value>.+?)\s*", re.DOTALL)
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_PLAIN: Final = re.compile(r"[A-Za-z0-9_ :@/+-]*")
"""Characters that JSON writers do not escape."""
STEPS_MAX: Final = 32


class _Every:
    """The step `*`: every member or element."""


EVERY: Final = _Every()
Step = str | int | _Every


class JsonPathError(ValueError):
    """A path is not valid; the message shows where, and what is allowed."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path with its comparison; without a comparison sign, the value only has to exist."""

    steps: tuple[Step, ...]
    sign: str = ""
    value: object = None

    def matches(self, data: bytes | pa.Buffer) -> bool:
        """Return whether the JSON document in `data` has a value at the path that the comparison accepts."""
        try:
            document = msgspec.json.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return False
        return any(self._accepts(found) for found in _at(document, self.steps))

    def pattern(self) -> str:
        """Return an RE2 pattern that every matching document contains, so that few documents need to be decoded.

        A document with a backslash always matches, because escapes can write a name in different ways.
        """
        name = next((step for step in reversed(self.steps) if isinstance(step, str)), None)
        if name is None or not _PLAIN.fullmatch(name):
            return ""
        text = f'"{re.escape(name)}"\\s*:'
        is_last = self.steps[-1] is name
        if self.sign == "==" and is_last and isinstance(self.value, str) and _PLAIN.fullmatch(self.value):
            text += f'\\s*"{re.escape(self.value)}"'
        elif self.sign == "==" and is_last and type(self.value) is int:
            # The same number may be written with a fraction of zeros or an exponent.
            text += f"\\s*(?:{self.value}(?:\\.0+)?\\s*[,}}]|-?[0-9]+(?:\\.[0-9]+)?[eE])"
        return f"{text}|\\\\"

    def _accepts(self, found: object) -> bool:
        if not self.sign:
            return True
        if self.sign in ("==", "!="):
            is_same = found == self.value and isinstance(found, bool) == isinstance(self.value, bool)
            return is_same == (self.sign == "==")
        if not _are_ordered(found, self.value):
            return False
        return _COMPARISONS[self.sign](found, self.value)


def json_path(text: str) -> JsonPath:
    """Return the path that is described by `text`. Raises `JsonPathError`."""
    rest = text.strip()
    if not rest.startswith("$"):
        msg = f"a JSON path begins with $, for example $.customer.id == 17; found {text!r}"
        raise JsonPathError(msg)
    steps: list[Step] = []
    at = 1
    while at < len(rest) and (found := _STEP.match(rest, at)) is not None:
        steps.append(_step(found))
        at = found.end()
    if len(steps) > STEPS_MAX:
        msg = f"a JSON path has at most {STEPS_MAX} steps"
        raise JsonPathError(msg)
    if at == len(rest):
        return JsonPath(tuple(steps))
    comparison = _COMPARISON.fullmatch(rest, at)
    if comparison is None:
        msg = (
            f"cannot read {rest[at:]!r}; allowed: .name, ['name'], [0], [*], and == != < <= > >= with a value"
        )
        raise JsonPathError(msg)
    try:
        value = msgspec.json.decode(comparison["value"].encode())
    except msgspec.MsgspecError as error:
        msg = f'{comparison["value"]!r} is not a JSON value; texts need quotes, for example "paid"'
        raise JsonPathError(msg) from error
    return JsonPath(tuple(steps), comparison["sign"], value)


def _step(found: re.Match[str]) -> Step:
    if found["name"] is not None:
        return found["name"]
    if found["quoted"] is not None:
        quoted = found["quoted"]
        if quoted.startswith("'"):
            quoted = '"' + quoted[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        try:
            return str(json.loads(quoted))
        except ValueError as error:
            msg = f"{found['quoted']} is not a name"
            raise JsonPathError(msg) from error
    return int(found["index"]) if found["index"] is not None else EVERY


def _at(value: object, steps: tuple[Step, ...]) -> Iterator[object]:
    """Yield the values at a path."""
    for place, step in enumerate(steps):
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return
            value = value[step]
        elif isinstance(step, int):
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return
            value = value[step]
        else:
            inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            for each in inner:
                yield from _at(each, steps[place + 1 :])
            return
    yield value


def _are_ordered(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    return (isinstance(one, int | float) and isinstance(other, int | float)) or (
        isinstance(one, str) and isinstance(other, str)
    )
