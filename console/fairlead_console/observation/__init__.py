"""What the console knows about a cluster: the newest picture, and the history of the last hour.

`picture` and `history` are pure; `observer` asks the cluster. Pages read the picture instead of asking the cluster
themselves, so that many open pages cost the cluster no more than one.
"""
