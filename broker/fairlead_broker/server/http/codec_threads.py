"""The threads in which bodies that would hold the loop are parsed, encoded and decoded.

Callers: ``produce``, ``topic_produce``, ``fetch``, ``tail``. They are few on purpose: a body opens to many times its
size (a JSON body of small records to ten times, a compressed batch to 64 MiB), so their number bounds the memory of
all such calls together; further calls wait holding their bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

# Parsing is Python and holds the interpreter's lock; a second one lets a small body pass a large one.
CODEC_THREADS: Final = 2

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")

_THREADS: Final = ThreadPoolExecutor(CODEC_THREADS, thread_name_prefix="codec")


async def in_thread(
    call: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Answer:
    """Run a call in one of the threads, after the calls queued before it."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(call, *arguments, **named))
