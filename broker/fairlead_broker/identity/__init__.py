"""Callers with signed tokens: fetching and storage of the issuers' keys, and verification of signatures.

`runtime` calls this package to get the caller of a token. Only this package uses `joserfc`. Only this package and
`peers` use the HTTP client.
"""
