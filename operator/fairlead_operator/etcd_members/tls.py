"""TLS for calls to the members of a managed etcd: the members' authorities, and the certificate that they require."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path


def context_of(folder: Path) -> ssl.SSLContext:
    """Return the context for the files `ca.crt`, `tls.crt` and `tls.key` of a folder. Raises `OSError`, `SSLError`."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def context_in_memory(authorities: str, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return the context for PEM texts, which the call writes to temporary files, since OpenSSL reads only files."""
    with tempfile.TemporaryDirectory(prefix="fairlead-operator-") as name:
        folder = Path(name)
        for file, content in (("ca.crt", authorities.encode()), ("tls.crt", certificate), ("tls.key", key)):
            path = folder / file
            path.touch(mode=0o600)
            path.write_bytes(content)
        return context_of(folder)
