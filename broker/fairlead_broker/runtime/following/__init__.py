"""Follower replicas: fetching from leaders, appending, truncating.

`hosting` uses this package. The state machine in `replication.follower` makes the decisions.
"""
