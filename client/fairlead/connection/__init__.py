"""HTTP connections to the brokers, retries of simple calls, metadata, tracing.

Every other package of the SDK uses this package. This package must not depend on batches or groups.
"""
