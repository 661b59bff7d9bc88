"""Observation of a cluster by the console: the newest picture, and the history of the last hour.

`picture`, `history` and `advice` are pure; `observer` queries the cluster. Pages read the picture instead of querying
the cluster themselves, so that many open pages cost the cluster no more than a single page.
"""
