"""JSON documents as trees whose nodes can be folded. Pure.

A tree keeps properties that the objects of a browser or of Python lose: the order of members, repeated names, and every
digit of a number.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fairlead_console.records.contents import Run, runs_of_text

BYTES_MAX: Final = 1024 * 1024
"""Maximum size of a document that is shown as a tree."""
NODES_MAX: Final = 2000
DEPTH_MAX: Final = 30
OPEN_DEPTH: Final = 2
"""Number of levels that are open when a page is shown."""

Kind: TypeAlias = Literal["object", "array", "string", "number", "word", "more"]


class _Number(str):
    """Digits of a number as they were written."""

    __slots__ = ()


class _Members(list[tuple[str, object]]):
    """Members of an object in order."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value in a document."""

    kind: Kind
    name: list[Run] | None
    """Name of the member; None for elements and the document."""
    text: list[Run]
    """Text of a simple value, or the number of values in an object or array."""
    children: list[Node]
    is_open: bool = False


def tree(data: bytes) -> Node | None:
    """Return the tree of a JSON document; None if the bytes are not JSON or too large for a tree."""
    if len(data) > BYTES_MAX:
        return None
    try:
        document = json.loads(
            data.decode(),
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_refused,
            object_pairs_hook=_Members,
        )
    except (ValueError, RecursionError):
        return None
    return _Builder().node(document, None, 0)


def _refused(name: str) -> object:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


class _Builder:
    """Builds the nodes of a document, at most `NODES_MAX`."""

    def __init__(self) -> None:
        self._left = NODES_MAX

    def node(self, value: object, name: str | None, depth: int) -> Node:
        """Return the node of a value."""
        self._left -= 1
        shown = None if name is None else runs_of_text(name)
        if isinstance(value, _Members):
            children = self._children(((each, inner) for each, inner in value), len(value), depth)
            return Node("object", shown, [Run(_count(len(value), "member"))], children, depth < OPEN_DEPTH)
        if isinstance(value, list):
            children = self._children(((None, inner) for inner in value), len(value), depth)
            return Node("array", shown, [Run(_count(len(value), "element"))], children, depth < OPEN_DEPTH)
        if isinstance(value, _Number):
            return Node("number", shown, [Run(value)], [])
        if isinstance(value, str):
            return Node("string", shown, runs_of_text(value), [])
        return Node("word", shown, [Run(json.dumps(value))], [])

    def _children(self, values: object, count: int, depth: int) -> list[Node]:
        children: list[Node] = []
        for name, inner in values:  # type: ignore[attr-defined]
            if self._left <= 0 or depth >= DEPTH_MAX:
                rest = f"{count - len(children):,} more; the text has all of them"
                children.append(Node("more", None, [Run(rest)], []))
                break
            children.append(self.node(inner, name, depth + 1))
        return children


def _count(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")
