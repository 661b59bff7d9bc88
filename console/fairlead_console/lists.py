"""Lists with search, order and pages: the words of a search, and the addresses of the list in a different order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")
PAGE_ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """One page of a list."""

    path: str
    q: str
    sort: str
    reverse: bool
    at: int
    last: int
    found: int
    """Number of entries that the search has found."""
    total: int
    rows: Sequence[T]
    default_sort: str

    def address(self, **changed: str | int) -> str:
        """Return the address of this list with other parameters; parameters with their defaults are left out."""
        given: dict[str, str | int] = {
            "q": self.q, "sort": self.sort, "reverse": int(self.reverse), "at": self.at, **changed,
        }  # fmt: skip
        defaults = {"q": "", "sort": self.default_sort, "reverse": 0, "at": 1}
        query = urlencode({name: value for name, value in given.items() if value != defaults[name]})
        return f"{self.path}?{query}" if query else self.path


def listing(
    path: str,
    entries: Iterable[T],
    name_of: Callable[[T], str],
    keys: dict[str, Callable[[T], Any]],
    *,
    q: str,
    sort: str,
    reverse: bool,
    at: int,
) -> Listing[T]:
    """Return page `at` of the entries whose names contain every word of `q`.

    Entries are sorted by `keys[sort]`, and equal entries by name. The first key is the default.
    """
    everything = list(entries)
    words = q.lower().split()
    found = [each for each in everything if all(word in name_of(each).lower() for word in words)]
    found.sort(key=name_of)
    found.sort(key=keys[sort], reverse=reverse)
    last = max(1, -(-len(found) // PAGE_ROWS))
    at = min(at, last)
    return Listing(
        path=path, q=q, sort=sort, reverse=reverse, at=at, last=last, found=len(found), total=len(everything),
        rows=found[(at - 1) * PAGE_ROWS : at * PAGE_ROWS], default_sort=next(iter(keys)),
    )  # fmt: skip
