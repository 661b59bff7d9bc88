"""Membership in a consumer group: the member's state machine, its session, commits, partitions, administration."""
