"""The client's only source of time and chance.

Called by the edges (producer, sender, fetcher, transport); the pure parts receive numbers. No other module of the
client calls `time.*` or `random.*`, so that the accumulator is tested with times written in the test.
"""

from __future__ import annotations

import random
import time
from uuid import uuid4

now_ns = time.time_ns
"""Wall clock time in nanoseconds since 1970, UTC; for `send`, where a call more a record is felt."""


def now_us() -> int:
    """Wall clock time in microseconds since 1970, UTC: the timestamp of a record without one."""
    return now_ns() // 1000


monotonic = time.monotonic
"""Seconds from an arbitrary start that never go back: lingering, deadlines, back-off."""

chance = random.random
"""A number in [0, 1): the jitter of back-off, the first partition of records without a key."""

random_bytes = random.randbytes
"""So many bytes that no codec makes smaller: the load of a benchmark."""


def new_id() -> str:
    """Draw a unique id of a group's member, 32 hexadecimal digits."""
    return uuid4().hex
