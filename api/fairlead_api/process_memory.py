"""Make the C allocator keep freed memory in the process instead of returning it to the system.

Fairlead's own processes (brokers and Spark workers) call this module at startup. The SDK does not call this module,
since the SDK runs in a user's process. By default glibc returns each freed block of megabytes to the system, and the
system maps and zeroes pages again for the next batch. Mapping and zeroing take a fifth of the processor time of a
produce request.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES: Final = 32 << 20
"""Maximum bytes that each arena may keep, and largest block that an arena serves; glibc accepts no larger value (half
of its HEAP_MAX_SIZE)."""

ARENAS_MAX: Final = 4
"""Maximum number of malloc arenas; by default glibc creates eight arenas per core, and each arena may keep
`KEPT_BYTES`."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""Parameter numbers from glibc's malloc.h; see mallopt(3)."""


def keep_freed_memory(library: object = None) -> bool:
    """Make malloc keep up to `KEPT_BYTES` of freed memory per arena; return whether the allocator supports the setting.

    `library` is the C library. Only glibc supports the setting; with musl and on macOS, which have no mallopt, the
    function has no effect.
    """
    mallopt = getattr(library if library is not None else ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # The trim and mmap thresholds are both set, because glibc adjusts a threshold that is not set.
    said = ((_M_TRIM_THRESHOLD, KEPT_BYTES), (_M_MMAP_THRESHOLD, KEPT_BYTES), (_M_ARENA_MAX, ARENAS_MAX))
    return all(mallopt(parameter, value) for parameter, value in said)
