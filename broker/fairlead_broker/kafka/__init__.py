"""Kafka's own protocol, on a separate listener: connections, and the execution of requests.

`wiring` builds the listener. The Kafka listener serves the same topics, groups and offsets as the data listener; this
package only translates. The package uses `runtime` as `server` does, and must not use `server`.
"""
