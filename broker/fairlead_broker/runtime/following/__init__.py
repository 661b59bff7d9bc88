"""Follower replicas: fetching from leaders, appending, truncating.

The room is used by `hosting`. `replication.follower` makes the decisions.
"""
