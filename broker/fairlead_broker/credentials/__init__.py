"""Credentials of callers: the header `Authorization` and API tokens (sections 2.1 and 2.2). The package is pure."""
