"""Memory for the requests of all Kafka connections: a connection reserves the bytes of a large request before reading.

A reservation allocates nothing. While the budget is used up, connections wait in order of arrival and do not read, so
that TCP slows down their clients; Kafka's protocol has no way to refuse an incomplete request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SMALL_FRAME_BYTES: Final = 64 << 10
"""Maximum size of a request, in bytes, that needs no reservation."""


class FrameBudget:
    """Number of bytes reserved by large requests, with a limit that only a single request may exceed."""

    __slots__ = ("_bytes_max", "_waiting", "taken")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.taken = 0
        """Number of reserved bytes."""
        self._waiting: dict[Callable[[], None], int] = {}

    def take(self, nbytes: int, ready: Callable[[], None]) -> bool:
        """Reserve bytes and return True, or return False and call `ready` when the bytes are reserved."""
        if not self._waiting and self._fits(nbytes):
            self.taken += nbytes
            return True
        self._waiting[ready] = nbytes
        return False

    def forget(self, ready: Callable[[], None]) -> None:
        """Stop waiting for a reservation."""
        self._waiting.pop(ready, None)

    def give_back(self, nbytes: int) -> None:
        """Release reserved bytes, and grant waiting reservations."""
        self.taken -= nbytes
        assert self.taken >= 0, "more bytes were released than reserved"
        while self._waiting:
            ready, wanted = next(iter(self._waiting.items()))
            if not self._fits(wanted):
                return
            del self._waiting[ready]
            self.taken += wanted
            ready()

    def _fits(self, nbytes: int) -> bool:
        return not self.taken or self.taken + nbytes <= self._bytes_max
