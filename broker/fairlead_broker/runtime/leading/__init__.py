"""Leader replicas: appending and acknowledging produced batches, serving fetches and long polls, retention.

One task owns one partition. `replication.leader` and `producers` make the decisions.
"""
