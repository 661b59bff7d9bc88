"""Leader replicas: appending and acknowledging produced batches, serving fetches and long polls, retention.

Each partition is owned by one task. `replication.leader` and `producers` make the decisions.
"""
