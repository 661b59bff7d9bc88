"""Coordination of brokers through keys in a store; the keys are changed only by compare-and-set.

Only this package knows which store contains the keys: etcd, or an embedded replacement based on SQLite. The runtime
calls the package. `registry` defines the meaning of keys and values, and `controller` decides on writes. The package
must not know about logs, HTTP or replication.
"""
