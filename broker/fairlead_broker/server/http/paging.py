"""Pages of a list behind an opaque cursor.

Callers: the calls that answer lists. The cursor says after which name the next page begins, so pages stay right
while names come and go; its form is private and may change.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeVar

from fairlead_api.excerpts import shortened, shown
from fairlead_api.problems import ProblemError

T = TypeVar("T")
_VERSION = b"1"


def page(
    items: Sequence[T], name_of: Callable[[T], str], *, limit: int, after: str | None
) -> tuple[list[T], str | None]:
    """The items behind the cursor, at most ``limit``, and the cursor of the next page or None.

    ``items`` are sorted by name. Raises ProblemError malformed_request for a cursor that is none.
    """
    first = 0 if after is None else bisect_right(items, name_behind(after), key=name_of)
    chosen = list(items[first : first + limit])
    if first + limit >= len(items) or not chosen:
        return chosen, None
    return chosen, cursor_of(name_of(chosen[-1]))


def cursor_of(name: str) -> str:
    """The cursor of the page that begins behind a name."""
    return urlsafe_b64encode(_VERSION + name.encode()).decode().rstrip("=")


def name_behind(cursor: str) -> str:
    """The name that a cursor stands for. Raises ProblemError malformed_request for a text that is none."""
    try:
        decoded = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        name = decoded[1:].decode()
    except (binascii.Error, ValueError) as error:
        raise _not_a_cursor(cursor) from error
    if decoded[:1] != _VERSION:
        raise _not_a_cursor(cursor)
    return name


def _not_a_cursor(cursor: str) -> ProblemError:
    return ProblemError(
        "malformed_request",
        f"after {shown(cursor)} is not a cursor; pass the `next` of the page before, unchanged",
        data={"parameter": "after", "value": shortened(cursor), "allowed": "the `next` of an earlier page"},
    )
