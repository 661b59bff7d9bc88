"""HTTP to the brokers: connections, retries of simple calls, metadata, tracing.

Used by every other room of the SDK. Must not know batches or groups.
"""
