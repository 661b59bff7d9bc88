"""Division of a large JSON body into slices of its array, each small enough to be parsed in one call.

A parser written in C holds the interpreter lock until the parser returns, so parsing a body of 16 MiB in one call would
stop the event loop for a second. `json_records` and `cloud_events` call this module for large bodies and parse slice by
slice. numpy searches the text in windows, at a cost that does not depend on the contents of the body. This module must
not depend on the meaning of the elements of the array: the parser decides whether a slice, and the body without its
slices, are valid JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fairlead_api.problems import ProblemError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DEPTH_MAX: Final = 32
"""Maximum nesting depth; deeper bodies are refused before parsing. No request of the contract nests deeper than five
levels."""

OBJECTS_MAX: Final = 1 << 19
"""Maximum number of objects and arrays in a body; each object or array takes as few as three bytes of text but at least
60 bytes when parsed."""

WINDOW_BYTES: Final = 64 << 10
WHOLE_BYTES_MAX: Final = 2 * WINDOW_BYTES
"""Maximum size of a text that is parsed in one call regardless of its contents, in at most ten milliseconds."""

RECORD_BYTES_MAX: Final = 2 << 20
"""Maximum size of one record in a JSON body; a record is parsed in one call."""

RECORD_PARTS_MAX: Final = 1 << 16
"""Maximum number of values in one record of more than 128 KiB of JSON text, counted as the brackets and commas outside
of strings.
"""

SURROUNDING_BYTES_MAX: Final = 64 << 10
"""Maximum size of the text of a body outside its records."""

_QUOTE, _COMMA = ord('"'), ord(",")
_STEPS: Final = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
"""Change of the nesting depth at each byte, as one signed byte: 1 for an opening and -1 for a closing bracket."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Adjacent elements of an array of the body, without brackets."""

    array: int
    """Index of the array among the divided arrays of the body, in the order of the body."""
    start: int
    stop: int

    def text(self, body: bytes) -> bytes:
        """Return the elements as a separate array."""
        return b"[%b]" % body[self.start : self.stop]


@dataclass(slots=True)
class Division:
    """The body with the arrays at one level emptied, and the slices of these arrays in order."""

    frame: bytes = b""
    """Text of the body without the elements of the divided arrays."""
    slices: list[Slice] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Positions in `frame` at which elements were cut out, each with the number of bytes cut out up to there."""

    def place_in_body(self, place: int) -> int:
        """Convert a position in `frame` to the position in the body."""
        return place + max((left_out for gap, left_out in self.gaps if gap <= place), default=0)


def too_deep() -> ProblemError:
    """Return the problem for a body that nests too deeply."""
    return ProblemError(
        "malformed_request", f"the body nests deeper than {DEPTH_MAX} levels", data={"allowed": DEPTH_MAX}
    )


def too_many_objects(count: int) -> ProblemError:
    """Return the problem for a body with too many objects and arrays."""
    return ProblemError(
        "malformed_request",
        f"the body has {count} objects and arrays; allowed: {OBJECTS_MAX}, send it in several requests",
        data={"allowed": OBJECTS_MAX},
    )


def divided(body: bytes, level: int, window_bytes: int = WINDOW_BYTES) -> Division:
    """Divide the arrays that begin at depth `level`, counted from 1; with `level` 0, the whole body is one element.

    A slice of more than two windows has a single element. Raises `malformed_request` for a body that nests too deeply,
    has too many objects or too much text outside its arrays, and for an element with too many values. Raises
    `body_too_large` for an element that is too large.
    """
    return _Divider(body, level, window_bytes).divided()


class _Divider:
    """State of the search for slices between two windows of the body."""

    def __init__(self, body: bytes, level: int, window_bytes: int) -> None:
        self._body = body
        self._level = level
        self._window_bytes = window_bytes
        self._division = Division()
        self._frame: list[bytes] = []
        self._frame_bytes = 0
        self._frame_from = 0
        self._slice_from = 0
        self._open = level == 0
        self._arrays = 0
        self._parts = 0
        """Number of brackets and commas in the part of the current slice before the current window."""
        self._in_string = 0
        self._depth = 0
        self._objects = 0

    def divided(self) -> Division:
        """Search all parts of the body for array elements, and return the slices."""
        for start, window in self._windows():
            self._search(start, window)
        if self._objects > OBJECTS_MAX:
            raise too_many_objects(self._objects)
        if self._level == 0:
            self._end_slice(len(self._body), self._parts)
        elif not self._open:
            self._extend_frame(len(self._body))
        self._division.frame = b"".join(self._frame)
        return self._division

    def _windows(self) -> Iterator[tuple[int, bytes]]:
        """Yield the body in windows, none of which ends within an escape."""
        start = 0
        while start < len(self._body):
            window = self._body[start : start + self._window_bytes]
            if (len(window) - len(window.rstrip(b"\\"))) % 2:
                window = self._body[start : start + len(window) + 1]
            yield start, window
            start += len(window)

    def _search(self, start: int, window: bytes) -> None:
        import numpy as np  # noqa: PLC0415 - importing numpy takes 0.1 s, and most programs parse no large body

        size = len(window)
        if b"\\" in window:
            window = window.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        text = np.frombuffer(window, np.uint8)
        outside = (np.cumsum(text == _QUOTE, dtype=np.uint8) + np.uint8(self._in_string + 1)) & np.uint8(1)
        steps = np.frombuffer(window.translate(_STEPS), np.int8) * outside.view(np.int8)
        depths = np.cumsum(steps, dtype=np.int32)
        depths += self._depth
        self._in_string, self._depth = 1 - int(outside[-1]), int(depths[-1])
        if int(depths.max()) > DEPTH_MAX:
            raise too_deep()
        begins = steps == 1
        self._objects += int(np.count_nonzero(begins))
        commas = (text == _COMMA) & outside.view(bool)
        parts = begins | commas
        counted = 0
        if self._level:
            edges = (begins & (depths == self._level)) | ((steps == -1) & (depths == self._level - 1))
            for edge in np.flatnonzero(edges).tolist():
                found = self._parts + int(np.count_nonzero(parts[counted:edge]))
                counted = edge
                self._edge(start + edge, found, begins=bool(begins[edge]))
            if self._open:
                cuts = np.flatnonzero(commas[counted:] & (depths[counted:] == self._level))
                for cut in self._chosen(start + counted, cuts):
                    found = self._parts + int(np.count_nonzero(parts[counted : cut - start]))
                    counted = cut - start
                    self._end_slice(cut, found)
                    self._slice_from = cut + 1
        self._parts += int(np.count_nonzero(parts[counted:size]))

    def _chosen(self, base: int, cuts: npt.NDArray[np.intp]) -> Iterator[int]:
        """Yield the positions of commas that end slices: the last of a window, and the comma after a long element."""
        if not len(cuts):
            return
        first, last = base + int(cuts[0]), base + int(cuts[-1])
        if first != last and first - self._slice_from > self._window_bytes:
            yield first
        yield last

    def _edge(self, place: int, parts: int, *, begins: bool) -> None:
        """Begin or end the slices of an array at its opening or closing bracket."""
        if begins:
            self._extend_frame(place + 1)
            self._slice_from, self._open, self._parts = place + 1, True, 0
        else:
            # The depth changes by one at each bracket, so an array that ends at this level has begun at this level.
            self._end_slice(place, parts)
            self._frame_from, self._open = place, False
            self._division.gaps.append((self._frame_bytes, place - self._frame_bytes))
            self._arrays += 1

    def _extend_frame(self, stop: int) -> None:
        self._frame.append(self._body[self._frame_from : stop])
        self._frame_bytes += stop - self._frame_from
        if self._frame_bytes > SURROUNDING_BYTES_MAX:
            raise ProblemError(
                "malformed_request",
                f"the body has more than {SURROUNDING_BYTES_MAX} bytes outside its records",
                data={"allowed": SURROUNDING_BYTES_MAX},
            )

    def _end_slice(self, stop: int, parts: int) -> None:
        size = stop - self._slice_from
        if size > WHOLE_BYTES_MAX:
            if size > RECORD_BYTES_MAX:
                what = f"a record of the body has {size} bytes of text; allowed: {RECORD_BYTES_MAX}"
                raise ProblemError("body_too_large", what, data={"limit_bytes": RECORD_BYTES_MAX})
            if parts > RECORD_PARTS_MAX:
                what = f"a record of the body has {parts} values; allowed: {RECORD_PARTS_MAX}"
                raise ProblemError("malformed_request", what, data={"allowed": RECORD_PARTS_MAX})
        self._division.slices.append(Slice(self._arrays, self._slice_from, stop))
        self._parts = 0
