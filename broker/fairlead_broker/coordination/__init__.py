"""Coordination of brokers by small keys that are changed only by compare-and-set.

Only this room knows in which store the keys are: etcd, or its embedded replacement on SQLite. The runtime calls the
room. `registry` defines the meaning of keys and values, and `controller` decides the writes. The room must not know
logs, HTTP or replication.
"""
