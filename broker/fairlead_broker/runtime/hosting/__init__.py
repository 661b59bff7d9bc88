"""All replicas of this broker: opening of logs, role changes, damage, scrubbing, upkeep.

`Broker` and `peer_serving` use this package.
"""
