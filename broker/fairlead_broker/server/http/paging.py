"""Pagination of lists with an opaque cursor.

Callers: the endpoints of calls that return lists. The cursor contains the name after which the next page begins, so
pages remain correct while names are added and removed. The format of the cursor is private and may change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

from fairlead_api import base64url
from fairlead_api.excerpts import shortened, shown
from fairlead_api.problems import ProblemError

T = TypeVar("T")
_VERSION = b"1"


def page(
    items: Sequence[T], name_of: Callable[[T], str], *, limit: int, after: str | None
) -> tuple[list[T], str | None]:
    """Return at most ``limit`` items after the cursor, and the cursor of the next page or None.

    ``items`` are sorted by name. Raises ProblemError malformed_request for an invalid cursor.
    """
    first = 0 if after is None else bisect_right(items, name_behind(after), key=name_of)
    chosen = list(items[first : first + limit])
    if first + limit >= len(items) or not chosen:
        return chosen, None
    return chosen, cursor_of(name_of(chosen[-1]))


def cursor_of(name: str) -> str:
    """Return the cursor of the page that begins after a name."""
    return base64url.encoded(_VERSION + name.encode())


def name_behind(cursor: str) -> str:
    """Return the name in a cursor. Raises ProblemError malformed_request for an invalid cursor."""
    try:
        decoded = base64url.decoded(cursor)
        name = decoded[1:].decode()
    except ValueError as error:
        raise _not_a_cursor(cursor) from error
    if decoded[:1] != _VERSION:
        raise _not_a_cursor(cursor)
    return name


def _not_a_cursor(cursor: str) -> ProblemError:
    return ProblemError(
        "malformed_request",
        f"after {shown(cursor)} is not a cursor; pass the `next` of the previous page unchanged",
        data={"parameter": "after", "value": shortened(cursor), "allowed": "the `next` of an earlier page"},
    )
