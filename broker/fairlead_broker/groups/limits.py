"""Limits of a group, each with its reason."""

from __future__ import annotations

from typing import Final

MEMBERS_MAX: Final = 1_000
"""Maximum number of members of a group: a new coordinator must load the key of each member."""
PARTITIONS_MAX: Final = 10_000
"""Maximum number of partitions that a group consumes: a target is computed in one turn of the event loop."""
PATTERNS_MAX: Final = 16
"""Maximum number of different patterns in a group: each new topic is matched against all patterns."""
PATTERN_LENGTH_MAX: Final = 1_000
"""Maximum number of characters of a pattern."""
PATTERN_MEMORY_BYTES_MAX: Final = 1 << 18
"""Maximum memory in bytes that RE2 uses for one compiled pattern. Within this memory, RE2 matches any pattern in
linear time.
"""
PATTERN_INSTRUCTIONS_MAX: Final = 1_100
"""Maximum number of instructions of a compiled pattern, enough for the longest pattern that lists topic names. In
the worst case RE2 runs each instruction for each character of a name, which blocks the event loop for a millisecond
for the longest name.
"""

HEARTBEAT_INTERVAL_MS: Final = 5_000
"""Milliseconds between two heartbeats of a member at rest, unless a third of its session timeout is shorter."""
HEARTBEATS_PER_SECOND_MAX: Final = 200
"""Maximum number of heartbeats per second from all members at rest that one broker coordinates. Each heartbeat
takes about 0.85 ms at this rate, so all heartbeats together use less than a fifth of a core. With more members, the
interval of each member grows.
"""
HASTY_INTERVAL_MS: Final = 500
"""Milliseconds between two heartbeats of a member that is releasing or receiving partitions."""
ASSIGNMENT_INTERVAL_SECONDS: Final = 1.0
"""Minimum seconds between two targets, so that a hundred members that join at the same time cause few computations."""
