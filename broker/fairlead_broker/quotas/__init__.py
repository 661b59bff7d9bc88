"""Quotas of callers: which limits apply, token buckets, and the share of each broker. Pure.

The caller passes the time, and applies the decisions. The package must not depend on HTTP or on the store.
"""
