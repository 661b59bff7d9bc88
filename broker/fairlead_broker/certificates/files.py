"""Names of the files in a folder of TLS material (rule T1): those of a Kubernetes Secret of type TLS, and `ca.crt`."""

from __future__ import annotations

from typing import Final

CHAIN_FILE: Final = "tls.crt"
"""Name of the file with the broker's certificate, followed by the intermediate certificates."""
KEY_FILE: Final = "tls.key"
CA_FILE: Final = "ca.crt"
"""Name of the file with the authorities that sign the certificates of brokers."""
