"""Membership in a consumer group: state machine of the member, session, commits, and assigned partitions."""
