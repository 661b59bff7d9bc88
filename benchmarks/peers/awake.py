"""Processors that stay awake during a measurement of latencies.

The host of a virtual machine takes up to 0.17 s to wake a processor that has no work, and this delay would be measured
with every request that arrives in a quiet moment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

BUSY = """
import contextlib, os
with contextlib.suppress(OSError):
    open("/proc/self/autogroup", "w").write("19")
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
parent = os.getppid()
while os.getppid() == parent:
    os.sched_yield()
"""
"""Program that uses a processor only while no other program needs it, until the benchmark has ended.

Without the calls to the scheduler, the program would keep the processor for up to four milliseconds after another
program has become runnable, until the next tick. A kernel that schedules sessions as groups applies the idle priority
only within a session, so the program needs a session of its own, and this session needs the lowest priority.
"""


@contextmanager
def awake_processors() -> Iterator[None]:
    """Keep every processor busy at idle priority until the end of the block."""
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
            )
            stack.callback(process.kill)
        yield
