"""Waits until the threads of the HTTP client are idle before Python finalizes.

pyreqwest delivers results from its own thread. After the last result of a program, this thread may not have returned
from Python when the interpreter finalizes. CPython before 3.14 then terminates the thread inside native code, and the
process aborts (exit code 134) although the program succeeded. One of ten short scripts was affected. Called by the
transport when it opens its first client; knows only the names of the threads. The broker has a counterpart of this
file, because the two packages share only the contract, which has neither clock nor HTTP client.
"""

from __future__ import annotations

import atexit
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from fairlead import clock

THREAD_NAME: Final = "pyreqwest"
REST_SECONDS_MAX: Final = 1.0
"""Maximum wait in seconds; a thread that is still busy afterwards serves a client that was not closed."""
POLL_SECONDS: Final = 0.0005
_TASKS: Final = Path("/proc/self/task")


@cache
def rest_before_exit() -> None:
    """Register the wait at exit, once per process, if the Python version and the system need it."""
    if sys.version_info < (3, 14) and _TASKS.is_dir():
        atexit.register(_wait_until_at_rest)


def _wait_until_at_rest() -> None:
    deadline = clock.monotonic() + REST_SECONDS_MAX
    seen_at_rest = 0
    # Two idle observations are required, because a thread may be seen between two of its steps.
    while seen_at_rest < 2 and clock.monotonic() < deadline:
        time.sleep(POLL_SECONDS)  # noqa: TID251 - releases the interpreter lock between two checks
        seen_at_rest = 0 if _busy() else seen_at_rest + 1


def _busy() -> bool:
    """Return whether a thread of the HTTP client runs or could run.

    Reading the file releases the interpreter lock, so that a thread that waits for the lock becomes runnable. A thread
    that is seen asleep therefore waits for the network.
    """
    for task in _TASKS.iterdir():
        with suppress(OSError):  # the thread may end while it is looked at
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            if name == THREAD_NAME and rest.split()[0] == "R":
                return True
    return False
