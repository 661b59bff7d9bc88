"""The client's only source of time and random numbers.

The I/O modules (producer, sender, fetcher, transport) call this module; the pure modules get times and random numbers
as arguments. No other module of the client calls `time.*` or `random.*`, so that tests of the accumulator can set the
time.
"""

from __future__ import annotations

import random
import time
from uuid import uuid4

now_ns = time.time_ns
"""Wall clock time in nanoseconds since 1970, UTC; `send` reads this clock directly, because an additional call per
record would be measurable."""


def now_us() -> int:
    """Return the wall clock time in microseconds since 1970, UTC: the default timestamp of a record."""
    return now_ns() // 1000


monotonic = time.monotonic
"""Monotonic time in seconds since an arbitrary start, for linger times, deadlines and back-off."""

chance = random.random
"""Random number in [0, 1), for the jitter of back-off and the first partition of records without a key."""

random_bytes = random.randbytes
"""Random bytes for the load of a benchmark, because no codec can compress random bytes."""


def new_id() -> str:
    """Return a new unique id for a group member, 32 hexadecimal digits."""
    return uuid4().hex
