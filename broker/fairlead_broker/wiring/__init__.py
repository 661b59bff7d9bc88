"""The composition root: puts a broker together, starts it and stops it. Decides nothing.

`start` starts a broker with its listeners; `broker` opens the broker without them. The other modules build one part
each, as functions from values to values: `engine`, `replicas`, `calls`, `upkeep`, `endpoints`. Called by the commands
and by tests that need a whole broker.
"""
