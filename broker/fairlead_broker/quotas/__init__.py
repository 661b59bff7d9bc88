"""Quotas of callers: the choice of the limits that apply, token buckets, and the share of each broker. Pure.

The shell passes the time in and carries out what is decided. This package must not depend on HTTP or on the store.
"""
