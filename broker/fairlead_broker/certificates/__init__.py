"""Certificates of the listeners and of calls to peers: their files, checks, snapshots and replacement.

This package checks every certificate and key file before an HTTP server or client reads the file. The package must not
depend on listeners or calls.
"""
