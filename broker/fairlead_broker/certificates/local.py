"""Certificates that a cluster on one machine generates for itself, for development and tests.

`dev up --secure` and `fairlead.testing` call this module. The generated authority signs one certificate, for this
machine only. The authority's key is never stored, so the authority can sign no other certificate. The module must not
depend on listeners.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairlead_broker.certificates.files import CA_FILE, CHAIN_FILE, KEY_FILE

LIFE: Final = timedelta(days=90)
LEFT_MIN: Final = timedelta(days=7)
"""Remaining validity below which a start generates new certificates."""
_NAMES: Final = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.IPAddress(ipaddress.ip_address("::1")),
)


def local_certificates(folder: Path, now_us: int) -> Path:
    """Write `tls.crt`, `tls.key` and `ca.crt` for this machine unless the folder has valid files. Return the folder."""
    now = datetime.fromtimestamp(now_us / 1e6, UTC)
    if _is_usable(folder / CHAIN_FILE, now):
        return folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Fairlead on this machine")])
    authority = (
        _builder(issuer, issuer, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    leaf = (
        _builder(x509.Name([]), issuer, key, now)
        .add_extension(x509.SubjectAlternativeName(_NAMES), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    _write(folder / CA_FILE, authority.public_bytes(Encoding.PEM))
    _write(folder / KEY_FILE, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    # The certificate chain is written last. If the chain is missing, the next start writes all three files again.
    _write(folder / CHAIN_FILE, leaf.public_bytes(Encoding.PEM))
    return folder


def _is_usable(chain: Path, now: datetime) -> bool:
    try:
        leaf = x509.load_pem_x509_certificate(chain.read_bytes())
    except (OSError, ValueError):
        return False
    return leaf.not_valid_after_utc - now > LEFT_MIN


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + LIFE)
    )


def _write(file: Path, content: bytes) -> None:
    made = file.with_name(f".{file.name}.new")
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(content)
    made.replace(file)
