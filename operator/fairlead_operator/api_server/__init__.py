"""The only room that speaks to the API server: calls, what was last seen, Events, and who may write.

`wiring` builds its parts; `reconcile/` and `watching/` know them by the Protocols of `ports`. It must not know what
the objects are for.
"""
