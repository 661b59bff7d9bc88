"""The composition root: assembles a broker, starts it and stops it, without decisions of its own.

`start` starts a broker with its listeners; `broker` opens the broker without them. The other modules build one part
each, as functions from values to values: `engine`, `replicas`, `calls`, `upkeep`, `endpoints`. The commands and tests
that need a whole broker use the room.
"""
