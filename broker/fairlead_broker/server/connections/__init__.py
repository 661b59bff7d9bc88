"""Sockets of the HTTP listeners: bound addresses, clients' connections, and the guard that closes or ignores them.

Used by ``server.http`` and the listeners. The package must not depend on requests or any particular call.
"""
