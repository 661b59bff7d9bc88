"""The mark that programs of Windows write before UTF-8: no part of the first line that follows it.

Used where lines are read, from standard input and from files. From CSV Arrow takes it off itself. Pure.
"""

from __future__ import annotations

from typing import Final

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def without_mark(first_line: bytes) -> bytes:
    """Return the first line of a text without the mark; of what is no UTF-8 the same bytes are a part."""
    rest = first_line.removeprefix(BYTE_ORDER_MARK)
    try:
        rest.decode()
    except UnicodeDecodeError:
        return first_line
    return rest
