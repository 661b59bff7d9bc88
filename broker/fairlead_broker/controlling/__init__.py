"""Execution of the controller's decisions: `controller` decides, this room writes to the coordination store.

Every broker holds one `Controllership`, and the broker with the controller key runs elections, moves, drains and
changes of topics. `wiring` builds the room, and `server` calls it for administration. The room must not know HTTP, logs
or the store in use.
"""
