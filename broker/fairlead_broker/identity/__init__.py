"""Callers with signed tokens: the keys of issuers, how they are fetched and kept, and the check of signatures.

`runtime` asks this package for the caller of a token. Only this package knows `joserfc`, and besides `peers` only this
package knows the HTTP client.
"""
