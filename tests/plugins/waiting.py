"""Waiting for a condition that no event announces: repeated checks with a pause between them.

The pause leaves the processors to the programs that the test waits for. A loop without a pause occupies a whole core,
and a run of all tests has only two.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 0.002
"""Pause between two checks of the state of the test's own process."""
COMMAND_SECONDS: Final = 0.5
"""Pause between two runs of a command, whose start takes about as much processor time."""
SECONDS_MAX: Final = 30.0


async def until(holds: Callable[[], object], seconds: float = SECONDS_MAX) -> None:
    """Wait until a condition holds; raise `TimeoutError` after `seconds`."""
    async with asyncio.timeout(seconds):
        while not holds():
            await pause(LOOK_SECONDS)


async def pause(seconds: float) -> None:
    """Pause between two checks of a state whose change sends no event."""
    await asyncio.sleep(seconds)  # noqa: TID251 - the pause between two checks, which the callers repeat


def pause_blocking(seconds: float) -> None:
    """Pause a thread between two checks of a state whose change sends no event."""
    time.sleep(seconds)  # noqa: TID251 - the pause between two checks, which the callers repeat
