"""Leader replicas: appending produced batches, acknowledging them, serving fetches and long polls, retention.

One task owns one partition; the decisions are those of `replication.leader` and `producers`.
"""
