"""Limits of the cluster on what callers may use: which limits apply, buckets, shares of brokers. Pure.

The shell passes the time in and carries out what is decided. This package must not depend on HTTP or on the store.
"""
