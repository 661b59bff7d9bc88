"""All replicas of this broker: opening their logs, changing their roles, damage, scrubbing, upkeep.

`Broker` and `peer_serving` use this room.
"""
