"""Threads that parse, encode and decode bodies large enough to block the event loop.

Callers: ``produce``, ``topic_produce``, ``fetch``, ``tail``, and ``groups`` for large commits. The number of threads is
small on purpose: it limits the memory of all these calls together, because a decoded body takes much more memory than
the body itself (ten times as much for a JSON body of small records, up to 64 MiB for a compressed batch). Further calls
wait with their undecoded bodies.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

# A loop that is being closed may not run the callback.
TURN_SECONDS_MAX: Final = 0.5
# Parsing runs in Python and holds the interpreter lock, so more threads parse no faster. The second thread lets a small
# body overtake a large body.
CODEC_THREADS: Final = 2

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

_THREADS: Final = ThreadPoolExecutor(CODEC_THREADS, thread_name_prefix="codec")
_THREAD: Final = threading.local()
"""Attribute ``loop`` is the event loop that waits for the current call of this thread."""


async def in_thread(
    call: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Answer:
    """Run a call in one of the codec threads, after the calls that were queued earlier."""
    loop = asyncio.get_running_loop()

    def run() -> Answer:
        _THREAD.loop = loop
        return call(*arguments, **named)

    return await loop.run_in_executor(_THREADS, run)


def wait_for_turn() -> None:
    """Wait until the event loop has run its due callbacks; outside a codec thread, return at once.

    A long call waits between its slices. A thread that releases the interpreter lock often can otherwise
    starve the loop for a tenth of a second: the thread takes the lock again before the loop's thread has woken up, and
    each wake-up restarts the time after which the loop's thread demands the lock (CPython's ``take_gil``).
    """
    loop = getattr(_THREAD, "loop", None)
    if loop is None:
        return
    turn = threading.Event()
    loop.call_soon_threadsafe(turn.set)
    turn.wait(TURN_SECONDS_MAX)
