"""Setup of a Python process of Spark, once for each process: garbage collection and freed memory.

Called by the planning, the tasks and the commits of source and sink, which Spark runs in separate processes. The module
must not know their work.
"""

from __future__ import annotations

import gc
import os
from typing import Final

from fairlead_api.process_memory import keep_freed_memory

_done: Final[set[tuple[int, str]]] = set()
"""Completed setups by process id and name: a fork inherits the set of its parent, but has loaded more modules."""


def spare_collector() -> None:
    """Exclude loaded objects from garbage collection; at most once in a process.

    Spark runs the garbage collector after each planning, commit and task, which takes 14 to 20 milliseconds if it scans
    all loaded objects.
    """
    if _is_first("collector"):
        gc.collect()
        gc.freeze()


def prepare_worker() -> None:
    """Exclude loaded objects from garbage collection, and keep freed memory for reuse; at most once in a process."""
    if _is_first("memory"):
        keep_freed_memory()
    spare_collector()


def _is_first(what: str) -> bool:
    """Return whether this is the first call in this process."""
    key = (os.getpid(), what)
    if key in _done:
        return False
    _done.add(key)
    return True
