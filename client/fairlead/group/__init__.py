"""Membership in a consumer group: the member's machine, its session, commits, partitions, administration."""
