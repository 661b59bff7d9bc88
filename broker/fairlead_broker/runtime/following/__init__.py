"""Follower replicas: fetching from leaders, appending, truncating.

`hosting` uses this room. The state machine in `replication.follower` makes the decisions.
"""
