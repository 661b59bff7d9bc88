"""Names of the files in a folder with TLS material: those of a Kubernetes Secret of type TLS, and the authorities."""

from __future__ import annotations

from typing import Final

CHAIN_FILE: Final = "tls.crt"
"""The broker's certificate, then the certificates between it and its authority."""
KEY_FILE: Final = "tls.key"
CA_FILE: Final = "ca.crt"
"""Authorities that sign the certificates of brokers."""
