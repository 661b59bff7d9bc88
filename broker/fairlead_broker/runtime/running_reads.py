"""Fetches and tails that wait for records, each of which ends when its caller loses read access (rule Z10).

Callers: the endpoints of fetches and tails, around each wait. If a token is revoked or expires, or an ACL or the mode
changes, the wait of a caller without access ends within a second. When the wait has ended, the endpoint checks the
access again and refuses the call. While tokens, ACLs and mode stay the same, access is not checked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fairlead_api.problems import ProblemError
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.runtime.security_view import SecurityView

LOOK_SECONDS: Final = 0.5
READS_A_SLICE: Final = 200
"""Number of reads that are checked before other tasks of the event loop run."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    access: CallerAccess
    topics: Callable[[], list[str]]
    end: Callable[[], None]


class RunningReads:
    """Waiting reads of a broker."""

    def __init__(self, security: SecurityView) -> None:
        self._security = security
        self._reads: dict[_Read, None] = {}

    @contextmanager
    def watch(
        self, access: CallerAccess, topics: Callable[[], list[str]], end: Callable[[], None]
    ) -> Iterator[None]:
        """Call `end` if the caller has lost read access to one of the topics."""
        read = _Read(access, topics, end)
        self._reads[read] = None
        try:
            yield
        finally:
            self._reads.pop(read, None)

    async def unless_ended(
        self, access: CallerAccess, topics: Callable[[], list[str]], work: Coroutine[Any, Any, T]
    ) -> T | None:
        """Return the result of the work; None if the work was cancelled because the caller has lost read access."""
        task = asyncio.get_running_loop().create_task(work)

        def end() -> None:
            task.cancel()

        with self.watch(access, topics, end):
            try:
                await asyncio.wait({task})
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    async def run(self) -> None:
        """Check access again after each change to tokens, ACLs, mode or issuer keys, and when tokens expire."""
        while True:
            # No event announces the expiry of a token.
            await asyncio.sleep(LOOK_SECONDS)  # noqa: TID251 - see the comment
            reads = list(self._reads)
            for begin in range(0, len(reads), READS_A_SLICE):
                for read in reads[begin : begin + READS_A_SLICE]:
                    if read in self._reads and self._has_ended(read):
                        self._reads.pop(read, None)
                        read.end()
                await asyncio.sleep(0)  # noqa: TID251 - lets other tasks run between two slices

    def _has_ended(self, read: _Read) -> bool:
        if self._security.is_current(read.access):
            return False
        try:
            return not self._security.may_read(read.access.caller, read.topics())
        except ProblemError:
            return True
