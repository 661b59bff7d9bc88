"""Setup of garbage collection and memory reuse in a Python process of Spark, once for each process.

The source and the sink call this module when they plan, run tasks and commit; Spark does this in separate processes.
The module must not depend on what these processes do.
"""

from __future__ import annotations

import gc
import os
from typing import Final

from fairlead_api.process_memory import keep_freed_memory

_done: Final[set[tuple[int, str]]] = set()
"""Completed setups by process id and name. The entries include the process id, since a forked process inherits the set
but must repeat the setup for the modules that it loads."""


def spare_collector() -> None:
    """Exclude all loaded objects from garbage collection; at most once per process.

    Spark runs the garbage collector after each planning, commit and task; a run takes 14 to 20 milliseconds if it scans
    all loaded objects.
    """
    if _is_first("collector"):
        gc.collect()
        gc.freeze()


def prepare_worker() -> None:
    """Exclude all loaded objects from garbage collection and keep freed memory for reuse, once per process."""
    if _is_first("memory"):
        keep_freed_memory()
    spare_collector()


def _is_first(what: str) -> bool:
    """Return whether a setup has not been completed in this process yet, and record the setup as completed."""
    key = (os.getpid(), what)
    if key in _done:
        return False
    _done.add(key)
    return True
