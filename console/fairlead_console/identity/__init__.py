"""The identity of a caller: sign-in with a token or through an OIDC issuer, and the encrypted cookie that contains it.

The console has no users and verifies no token itself: it forwards the token of the caller with every call, and the
cluster decides. `sessions` writes and reads the cookie, `oidc` calls the issuer, `local_paths` keeps redirects inside
the console, and `signed_in` decrypts the cookie of each request and refuses requests from other sites.
"""
