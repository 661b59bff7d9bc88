"""The only room that calls the API server: requests, the cache of objects, Events, and leadership.

`wiring` builds its parts; `reconcile/` and `watching/` use them through the Protocols of `ports`. The room must not
know the purpose of the objects.
"""
