"""The identity of a caller: sign-in with a token or through an OIDC issuer, and the encrypted cookie that carries it.

The console has no users and verifies no token itself: it forwards the token of the caller with every call, and the
cluster decides. `sessions` is the cookie, `oidc` speaks with the issuer, `local_paths` keeps redirects inside the
console, and `signed_in` opens the cookie of each request and closes the console to other sites.
"""
