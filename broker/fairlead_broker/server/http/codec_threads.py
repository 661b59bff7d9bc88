"""Threads that parse, encode and decode bodies large enough to block the event loop.

Callers: ``produce``, ``topic_produce``, ``fetch``, ``tail``, and ``groups`` for large commits. The number of threads is
small on purpose: it limits the memory of all these calls together, because a decoded body takes much more memory than
the body itself (ten times as much for a JSON body of small records, up to 64 MiB for a compressed batch). Further calls
wait with their undecoded bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

# Parsing runs in Python and holds the interpreter lock, so more threads parse no faster. The second thread lets a small
# body overtake a large body.
CODEC_THREADS: Final = 2

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

_THREADS: Final = ThreadPoolExecutor(CODEC_THREADS, thread_name_prefix="codec")


async def in_thread(
    call: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Answer:
    """Run a call in one of the codec threads, after the calls that were queued earlier."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(call, *arguments, **named))
