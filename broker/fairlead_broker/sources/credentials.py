"""Credentials of links, which are files of each broker in the folder of the setting `link_credentials` (rule L2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, repr=False)
class SourceCredentials:
    """Credentials of one link. The class has no `repr`, because it contains secrets."""

    token: str | None = None
    ca_pem: bytes | None = None
    """Certificates of the source's authorities, or None for the system's authorities."""
    identity_pem: bytes | None = None
    """Key and certificate chain that the link presents."""


def read_credentials(folder: Path | None, link: str) -> SourceCredentials:
    """Return the credentials of a link; a missing file means that its part is not used. The call blocks."""
    if folder is None:
        return SourceCredentials()
    token = _read(folder / f"{link}.token")
    certificate, key = _read(folder / f"{link}.crt"), _read(folder / f"{link}.key")
    return SourceCredentials(
        token=None if token is None else token.decode().strip(),
        ca_pem=_read(folder / f"{link}.ca"),
        identity_pem=None if certificate is None or key is None else key + b"\n" + certificate,
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
