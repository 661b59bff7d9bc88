"""Threads that parse, encode and decode bodies large enough to block the event loop.

Callers: ``produce``, ``topic_produce``, ``fetch``, ``tail``. The number of threads is small on purpose. A decoded body
takes many times its size (ten times for a JSON body of small records, up to 64 MiB for a compressed batch), so the
number of threads bounds the memory of all these calls together. Further calls wait and keep their undecoded bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

# Parsing runs in Python and holds the interpreter lock. A second thread lets a small body overtake a large body.
CODEC_THREADS: Final = 2

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

_THREADS: Final = ThreadPoolExecutor(CODEC_THREADS, thread_name_prefix="codec")


async def in_thread(
    call: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Answer:
    """Run a call in one of the threads, after the calls queued before it."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(call, *arguments, **named))
