"""The shell of the controller: runs the decisions of `controller` against the coordination store.

Every broker holds one `Controllership`; the broker with the controller key runs elections, moves, drains and changes
of topics. Built in `wiring`, called by `server` for administration. Must not know HTTP, logs or which store is used.
"""
