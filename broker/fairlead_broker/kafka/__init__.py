"""Kafka's own protocol, on a listener of its own: connections, and the execution of requests.

`wiring` builds the listener. Topics, groups and offsets are those of the data listener; this package only translates.
The package uses `runtime` like `server` does, and must not use `server`.
"""
