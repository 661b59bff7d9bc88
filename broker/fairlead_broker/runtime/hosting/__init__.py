"""All replicas of this broker: opening their logs, changing their roles, damage, scrubbing, upkeep.

The room is used by the broker and by `peer_serving`.
"""
