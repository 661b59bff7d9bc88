"""Limits of a group, each with its reason."""

from __future__ import annotations

from typing import Final

MEMBERS_MAX: Final = 1_000
"""Maximum members of a group, since a new coordinator has to load the key of each member."""
PARTITIONS_MAX: Final = 10_000
"""Maximum partitions of a group's topics, since a target is computed within one turn of the broker's event loop."""
PATTERNS_MAX: Final = 16
"""Maximum number of different patterns in a group, since each new topic is matched against all patterns."""
PATTERN_LENGTH_MAX: Final = 1_000
"""Maximum characters of a pattern."""
PATTERN_MEMORY_BYTES_MAX: Final = 1 << 18
"""Maximum memory of RE2 for one compiled pattern, with which matching stays linear and small for any pattern."""
PATTERN_INSTRUCTIONS_MAX: Final = 1_100
"""Instructions of a compiled pattern, enough for a list of names of the longest pattern. In the worst case each
instruction runs for each character of a name, which blocks the event loop for a millisecond for the longest name."""

SESSION_TIMEOUT_MS_DEFAULT: Final = 45_000
REBALANCE_TIMEOUT_MS_DEFAULT: Final = 300_000
HEARTBEAT_INTERVAL_MS: Final = 5_000
"""Milliseconds between two heartbeats of a member at rest, unless a third of its session timeout is shorter."""
HEARTBEATS_PER_SECOND_MAX: Final = 200
"""Heartbeats per second of all members at rest that one broker coordinates. Each heartbeat costs about 0.85 ms at such
rates, so all of them use less than a fifth of a core. With more members each member's interval grows."""
HASTY_INTERVAL_MS: Final = 500
"""Milliseconds between two heartbeats of a member that must release or receives partitions."""
ASSIGNMENT_INTERVAL_SECONDS: Final = 1.0
"""Minimum seconds between two targets, so that a hundred members that join together cost few computations."""
