"""Waits until the threads of the HTTP client are idle before Python finalizes.

pyreqwest delivers results from its own thread. After a program's last result, the thread that delivered the result may
still be running Python code when the interpreter finalizes. CPython before 3.14 then terminates the thread inside
native code, and the process aborts (exit code 134) although the program succeeded. One of ten short scripts aborted in
this way. The transport calls this module when it opens its first client; the module recognises the threads by name
only. The broker has a copy of this module, because the broker and the SDK share only `fairlead_api`, which has neither
a clock nor an HTTP client.
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
"""Maximum wait in seconds for idle threads; a thread that is busy for longer serves a client that was not closed."""
POLL_SECONDS: Final = 0.0005
_TASKS: Final = Path("/proc/self/task")


@cache
def rest_before_exit() -> None:
    """Register the wait at exit, once per process, if the Python version and the operating system require the wait."""
    if sys.version_info < (3, 14) and _TASKS.is_dir():
        atexit.register(_wait_until_at_rest)


def _wait_until_at_rest() -> None:
    deadline = clock.monotonic() + REST_SECONDS_MAX
    seen_at_rest = 0
    # Two observations of an idle thread are required, because the thread may be between two steps of its work.
    while seen_at_rest < 2 and clock.monotonic() < deadline:
        time.sleep(POLL_SECONDS)  # noqa: TID251 - releases the interpreter lock between two checks
        seen_at_rest = 0 if _busy() else seen_at_rest + 1


def _busy() -> bool:
    """Return whether a thread of the HTTP client is running or runnable.

    Reading the status file releases the interpreter lock, so a thread that waits for the lock becomes runnable. A
    thread whose status is "sleeping" is therefore waiting for the network.
    """
    for task in _TASKS.iterdir():
        with suppress(OSError):  # the thread may end while its status is read
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            if name == THREAD_NAME and rest.split()[0] == "R":
                return True
    return False
