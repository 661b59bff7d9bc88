"""Coordination of brokers through small keys in a store, which are changed only by compare-and-set.

Only this room knows in which store the keys are: etcd, or an embedded replacement of etcd on SQLite. The runtime
calls the room. `registry` defines the meaning of keys and values, and `controller` decides the writes. The room
must not know logs, HTTP or replication.
"""
