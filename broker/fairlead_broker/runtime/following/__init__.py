"""Follower replicas: fetching from leaders, appending, truncating.

Used by `hosting`. The decisions are those of `replication.follower`.
"""
