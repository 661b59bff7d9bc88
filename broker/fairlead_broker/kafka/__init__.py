"""Kafka's own protocol, on a listener of its own: connections, requests, and one module for each family of APIs.

`wiring` builds the listener. Topics, groups and offsets are those of the data listener; this package only translates.
The package uses `runtime` like `server` does, and must not use `server`. `messages` is the only module that imports the
library with Kafka's message definitions.
"""
