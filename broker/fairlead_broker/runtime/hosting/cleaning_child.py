"""The broker's side of the child process that carries out cleaning rounds: sends orders and receives events.

`cleaner` owns the child. In a separate process, the work of a round, which is nearly all in numpy and Arrow, does not
delay the event loop. The child never renames a file, so it may be killed at any time.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

import msgspec

from fairlead_broker.clock import Clock
from fairlead_broker.log.cleaning.process import GO, HURRY, CleanerEvent, RoundFailed, set_slice
from fairlead_broker.log.cleaning.rounds import CleaningOrder, RoundDone

PROGRAM: Final = "fairlead_broker.log.cleaning.process"
ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Environment variables of the child process: Arrow and numpy would start a thread for each processor, and Arrow's own
allocator does not return freed memory.
"""
LINE_BYTES_MAX: Final = 1 << 20
"""Maximum size of an event, enough for a group of a few thousand segments."""
END_SECONDS: Final = 5.0
"""Number of seconds within which a killed child process must end."""
STEP_SECONDS_MAX: Final = 2.0
"""Number of seconds after which a step counts as starved, many times the duration of a step on an idle processor. After
a starved step, the rest of the round does not wait for an idle processor.
"""


class CleaningChild:
    """One child process, started for the first round and again after it has ended."""

    __slots__ = ("_clock", "_process")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._process: Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    async def round(self, order: CleaningOrder) -> AsyncGenerator[CleanerEvent, None]:
        """Yield the events of a round, which continues when the next event is requested and ends with the iteration.

        A round whose process dies ends with `RoundFailed`.
        """
        process = await self._running()
        assert process.stdin is not None, "the process has a standard input"
        assert process.stdout is not None, "the process has a standard output"
        ended, answer, begun = False, GO, math.inf
        try:
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            while True:
                line = await process.stdout.readline()
                if not line:
                    yield RoundFailed(f"the process ended with status {await process.wait()}")
                    break
                if self._clock.monotonic() - begun > STEP_SECONDS_MAX:
                    answer = HURRY
                event: CleanerEvent = msgspec.json.decode(line, type=CleanerEvent)
                ended = isinstance(event, RoundDone | RoundFailed)
                yield event
                if ended:
                    break
                begun = self._clock.monotonic()
                process.stdin.write(answer + b"\n")
        finally:
            if not ended:
                # The process is in the middle of a round, and has nothing to save.
                await self.end()

    async def end(self) -> None:
        """End the process, and wait until it has ended."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        async with asyncio.timeout(END_SECONDS):
            await process.wait()

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                PROGRAM,
                stdin=PIPE,
                stdout=PIPE,
                limit=LINE_BYTES_MAX,
                env=os.environ | ENVIRONMENT,
            )
            # The program lowers its priority only after it has loaded its libraries, which takes half a second.
            set_slice(self._process.pid)
        return self._process
