"""What is done once in a Python process of Spark: garbage and freed memory are its own affair.

Called by what Spark runs in processes of its own: planning, tasks and commits of source and sink. Must not know what
they do.
"""

from __future__ import annotations

import gc
import os
from typing import Final

from fairlead_api.process_memory import keep_freed_memory

_done: Final[set[tuple[int, str]]] = set()
"""By process too, since a fork inherits what its parent had done, and more is loaded in it."""


def spare_collector() -> None:
    """Take what is loaded out of the garbage collector's way; at most once a process.

    Spark collects garbage after everything that it has a process do, and looks at all that was loaded: 14 to 20
    milliseconds for each planning, commit and task.
    """
    if _is_first("collector"):
        gc.collect()
        gc.freeze()


def prepare_worker() -> None:
    """Spare the collector, and have freed batches reused; at most once a process."""
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
