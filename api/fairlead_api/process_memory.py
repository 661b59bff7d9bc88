"""Whether the C allocator gives freed memory back to the system at once.

Called where a process begins that is Fairlead's own: a broker, a worker of Spark. The SDK does not call it, since the
process is its user's. Batches of megabytes come and go; glibc gives each back when it is freed, and the next one is
mapped and zeroed page by page again: a fifth of the work of a produce request.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES: Final = 32 << 20
"""What each arena may keep, and the largest block it holds: beyond it glibc refuses (half of its HEAP_MAX_SIZE)."""

ARENAS_MAX: Final = 4
"""Number of arenas of malloc; unbounded, glibc creates eight for each core, and each may keep as much memory."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""Numbers of glibc's malloc.h, see mallopt(3)."""


def keep_freed_memory(library: object = None) -> bool:
    """Let malloc reuse freed memory, up to `KEPT_BYTES` an arena; return whether this allocator (`library`) can.

    Only glibc can: musl and macOS have no mallopt, and nothing changes there.
    """
    mallopt = getattr(library if library is not None else ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Both thresholds: glibc would adjust a threshold that is not set.
    said = ((_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_MMAP_THRESHOLD, KEPT_BYTES), (_M_ARENA_MAX, ARENAS_MAX))
    return all(mallopt(parameter, value) for parameter, value in said)
