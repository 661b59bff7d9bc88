"""Calls to the other brokers of the cluster: HTTP/2 to their peer listeners, and the messages of these calls.

The runtime fetches, reports and sends requests through `peers.Peers`. The server forwards calls through it and decodes
the same messages on the other side. The room makes no decisions about partitions, and retries nothing.
"""
