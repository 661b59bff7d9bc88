"""Calls to the other brokers of the cluster: HTTP/2 to their peer listeners, and the messages that travel there.

The runtime fetches, reports and asks through `peers.Peers`; the server forwards through it and decodes the same
messages on the other side. Decides nothing about partitions, and tries nothing twice.
"""
