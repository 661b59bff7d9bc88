"""Certificates of the listeners and of calls to peers: their files, checks, snapshots and replacement.

Every file is checked here before an HTTP server or client reads it. The package must not depend on listeners or calls.
"""
