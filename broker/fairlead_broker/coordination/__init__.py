"""Agreement between brokers: small keys changed only by compare-and-set.

The only room that knows what stands behind coordination: etcd, or its embedded twin on SQLite. Called by the
runtime. What the keys and values mean stands in `registry`; what is to be written is decided in `controller`. Must
not know of logs, HTTP or replication.
"""
