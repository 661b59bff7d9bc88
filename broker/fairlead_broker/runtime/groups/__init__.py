"""Consumer groups on their coordinator: claims, turns, committed offsets, lag.

The pure room `groups` makes the decisions. `server` calls this room through `Broker`.
"""
