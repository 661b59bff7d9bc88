"""All replicas of this broker: opening their logs, changing their roles, damage, scrubbing, upkeep.

Used by the broker and by `peer_serving`.
"""
