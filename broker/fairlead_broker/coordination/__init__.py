"""Coordination of brokers through keys in a store, which are changed only by compare-and-set.

Only this room knows which store holds the keys: etcd, or an embedded replacement based on SQLite. The runtime
calls the room. `registry` defines the meaning of keys and values, and `controller` decides on writes. The room
must not know logs, HTTP or replication.
"""
