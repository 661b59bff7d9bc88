"""Execution of the controller's decisions: `controller` decides, and this package writes to the coordination store.

Every broker has a `Controllership`, and the broker that holds the controller key runs elections, moves, drains
and topic changes. `wiring` creates the objects of the package, and `server` calls them for administration. The
package must not know about HTTP, logs, or the store in use.
"""
