"""Calls to the other brokers of the cluster: HTTP/2 to their peer listeners, and the messages of these calls.

The runtime fetches, reports and sends requests through `peers.Peers`. The server forwards calls through `peers.Peers`
and decodes the same messages on the receiving broker. The package makes no decisions about partitions and does not
retry calls.
"""
