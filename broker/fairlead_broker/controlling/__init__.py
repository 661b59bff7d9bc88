"""Execution of the controller's decisions: `controller` decides, and this room writes to the coordination store.

Every broker has a `Controllership`, and the broker that holds the controller key runs elections, moves, drains
and topic changes. `wiring` creates the objects of the room, and `server` calls them for administration. The room
must not know HTTP, logs, or the store in use.
"""
