"""Grouping of lines in a body of unlimited duration.

Callers: ``line_produce``. A group ends when it is large enough or when no bytes arrive for 10 ms. A file is therefore
stored in large batches, while a line that a person types is stored immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from fairlead_api.problems import ProblemError
from fairlead_broker.server.http.body import BodyReader, ClientGone

GROUP_BYTES_MAX: Final = 256 << 10
"""Maximum number of bytes of text in a group: enough for efficient batches, and few enough to be parsed within
milliseconds."""
STEP_BYTES: Final = 8 << 10
"""Number of bytes that are divided into lines in one turn of the event loop; if all lines are empty, the turn takes
four milliseconds."""
LINGER_SECONDS: Final = 0.01
"""Number of seconds for which an incomplete group waits for further bytes."""
IDLE_SECONDS_MAX: Final = 300.0
"""Maximum number of seconds between two lines. An idle body occupies only a stream of its HTTP/2 connection. The bytes
of an incomplete line occupy memory, so the limits of all bodies apply within a line."""

Lines = list[tuple[int, bytes]]
"""Lines with their numbers, from 1; empty lines are counted but left out."""


class LineStream:
    """Reader of the lines of one body."""

    def __init__(self, reader: BodyReader, line_bytes_max: int) -> None:
        """`line_bytes_max`: maximum number of bytes in a line.

        `reader` counts received bytes until their group is yielded.
        """
        self._reader = reader
        self._line_bytes_max = line_bytes_max
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._rest_since = 0.0
        self._number = 0
        self._lines: Lines = []
        self._lines_bytes = 0

    async def groups(self) -> AsyncIterator[Lines]:
        """Yield groups of lines until the body ends.

        Raises body_too_large for a line beyond the limit, malformed_request after a pause that is too long, overloaded,
        shutting_down, and ClientGone; groups before the error have already been yielded.
        """
        pending: asyncio.Task[bytes] | None = None
        try:
            while True:
                pending = pending or asyncio.get_running_loop().create_task(self._reader.next_piece())
                seconds = LINGER_SECONDS if self._lines else self._pause_seconds_max()
                await asyncio.wait({pending}, timeout=max(0, seconds))
                if not pending.done():
                    if not self._lines:
                        raise self._silent()
                    yield self._taken()
                    continue
                piece, pending = pending.result(), None
                for start in range(0, len(piece), STEP_BYTES):
                    if start:
                        await asyncio.sleep(0)  # noqa: TID251 - a large piece is divided into lines in several turns
                    self._add(piece[start : start + STEP_BYTES])
                    if self._lines_bytes >= GROUP_BYTES_MAX:
                        yield self._taken(len(piece) - start - STEP_BYTES)
                if self._reader.complete:
                    break
            self._end_line()
            if self._lines:
                yield self._taken()
        finally:
            # The lines are dropped here, because sending the end of the answer may have to wait for a client that does
            # not read.
            self._rest, self._lines = [], []
            if pending is not None:
                pending.cancel()
                with suppress(asyncio.CancelledError, ClientGone, ProblemError):
                    await pending

    def _add(self, piece: bytes) -> None:
        first, *others = piece.split(b"\n")
        self._extend(first)
        for each in others:
            self._end_line()
            self._extend(each)

    def _extend(self, part: bytes) -> None:
        if part and not self._rest_bytes:
            self._rest_since = asyncio.get_running_loop().time()
        self._rest_bytes += len(part)
        if self._rest_bytes > self._line_bytes_max:
            raise ProblemError(
                "body_too_large",
                f"line {self._number + 1} is longer than {self._line_bytes_max} bytes",
                data={"limit_bytes": self._line_bytes_max},
            )
        self._rest.append(part)

    def _end_line(self) -> None:
        self._number += 1
        line = b"".join(self._rest).strip()
        self._lines_bytes += self._rest_bytes
        self._rest, self._rest_bytes = [], 0
        if line:
            self._lines.append((self._number, line))

    def _taken(self, undivided_bytes: int = 0) -> Lines:
        lines, self._lines, self._lines_bytes = self._lines, [], 0
        self._reader.keep_only(self._rest_bytes + max(0, undivided_bytes))
        return lines

    def _pause_seconds_max(self) -> float:
        """Return the maximum number of seconds until the next piece."""
        if not self._rest_bytes:
            return IDLE_SECONDS_MAX
        limits = self._reader.limits
        left = self._rest_since + limits.body_seconds_max - asyncio.get_running_loop().time()
        return min(limits.body_idle_seconds_max, left)

    def _silent(self) -> ProblemError:
        if not self._rest_bytes:
            return ProblemError(
                "malformed_request",
                f"neither a line nor the end of the body arrived within {IDLE_SECONDS_MAX:g} s",
            )
        limits = self._reader.limits
        return ProblemError(
            "malformed_request",
            f"line {self._number + 1} is incomplete: {self._rest_bytes} bytes arrived, then none for"
            f" {limits.body_idle_seconds_max:g} s; or the line took more than {limits.body_seconds_max:g} s",
        )
