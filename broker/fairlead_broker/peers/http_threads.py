"""Wait for the threads of the HTTP client before the interpreter finalizes.

pyreqwest passes results to Python from its own thread. After the last result of a program, this thread may still be
executing Python code when the interpreter finalizes. CPython before 3.14 then terminates the client's thread within
native code, and the process aborts (exit code 134) after successful work. `http_clients` registers the wait when it
makes a client. The SDK has a copy of this file, because the two packages share only the contract, which has neither a
clock nor an HTTP client.
"""

from __future__ import annotations

import atexit
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from fairlead_broker.clock import SystemClock

THREAD_NAME: Final = "pyreqwest"
REST_SECONDS_MAX: Final = 1.0
"""Maximum wait in seconds for idle threads; a thread that is busy for longer serves a client that was not closed."""
POLL_SECONDS: Final = 0.0005
_TASKS: Final = Path("/proc/self/task")


@cache
def rest_before_exit() -> None:
    """Register the wait for the HTTP client's threads, once per process, on systems that need it."""
    if sys.version_info < (3, 14) and _TASKS.is_dir():
        atexit.register(_wait_until_at_rest)


def _wait_until_at_rest() -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + REST_SECONDS_MAX
    seen_at_rest = 0
    # Two observations are needed, because a thread may be observed between two of its steps.
    while seen_at_rest < 2 and clock.monotonic() < deadline:
        time.sleep(POLL_SECONDS)  # noqa: TID251 - releases the interpreter lock between checks
        seen_at_rest = 0 if _busy() else seen_at_rest + 1


def _busy() -> bool:
    """Return whether a thread of the HTTP client runs or could run.

    Reading the state of a thread releases the interpreter lock, so a thread that waits for the lock becomes runnable. A
    thread that is still asleep is waiting for the network.
    """
    for task in _TASKS.iterdir():
        with suppress(OSError):  # The thread may end during the check.
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            if name == THREAD_NAME and rest.split()[0] == "R":
                return True
    return False
