"""The limits of a group, each with its reason."""

from __future__ import annotations

from typing import Final

MEMBERS_MAX: Final = 1_000
"""Members of a group: each is a key that a new coordinator has to load."""
PARTITIONS_MAX: Final = 10_000
"""Partitions a group may subscribe to: a target is computed within one turn of the broker's loop."""
PATTERNS_MAX: Final = 16
"""Different patterns in a group: each new topic is matched against all of them."""
PATTERN_LENGTH_MAX: Final = 1_000
"""Characters of a pattern."""
PATTERN_MEMORY_BYTES_MAX: Final = 1 << 18
"""Memory of RE2 for one compiled pattern: matching stays linear and small for any pattern."""
PATTERN_INSTRUCTIONS_MAX: Final = 1_100
"""Instructions of a compiled pattern, enough for a list of names of the longest pattern. At worst each instruction runs
for each character of a name: a millisecond for the longest name, during which the loop is blocked."""

SESSION_TIMEOUT_MS_DEFAULT: Final = 45_000
REBALANCE_TIMEOUT_MS_DEFAULT: Final = 300_000
HEARTBEAT_INTERVAL_MS: Final = 5_000
"""Time between two heartbeats of a member at rest, unless a third of its session timeout is shorter."""
HEARTBEATS_PER_SECOND_MAX: Final = 200
"""Heartbeats a second of all members at rest that one broker coordinates: each costs about 0.85 ms at such rates, all
together less than a fifth of a core. With more members the interval of each grows."""
HASTY_INTERVAL_MS: Final = 500
"""Time between two heartbeats of a member that must release partitions or receives some."""
ASSIGNMENT_INTERVAL_SECONDS: Final = 1.0
"""Minimum time between two targets: a hundred members that join at once cost few computations."""
