"""What is done once in a worker process of Spark before its first task: garbage and freed memory are its own affair.

Called by the tasks of source and sink. Must not know what they do.
"""

from __future__ import annotations

import gc
import os
from typing import Final

from fairlead_api.process_memory import keep_freed_memory

_prepared: Final[set[int]] = set()
"""Processes, since a fork inherits what its parent had prepared, and more is loaded in it."""


def prepare_worker() -> None:
    """Take what is loaded out of the garbage collector's way, and have freed batches reused; at most once a process.

    Spark's worker collects garbage after every task and looks at everything that was loaded.
    """
    if os.getpid() in _prepared:
        return
    _prepared.add(os.getpid())
    keep_freed_memory()
    gc.collect()
    gc.freeze()
