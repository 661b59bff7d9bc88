"""The keys and certificates of the operator's own authorities; only this package imports `cryptography`."""
