"""Consumer groups on their coordinator: claims, turns, committed offsets, lag.

The package `fairlead_broker.groups`, which performs no I/O, makes the decisions. `server` calls this package
through `Broker`.
"""
