"""Certificate authorities and certificates for tests: valid certificates, and certificates with one fault each."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key: TypeAlias = (
    ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | dsa.DSAPrivateKey
)
HOSTS = ("127.0.0.1", "localhost")
BOTH_USES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True)
class Issued:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> bytes:
        """The certificate in PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The key in PEM."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def sha256(self) -> str:
        """SHA-256 of the certificate in hexadecimal digits."""
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    def write(self, folder: Path, *authorities: Issued) -> Path:
        """Write `tls.crt`, `tls.key` and `ca.crt` into the folder, each replaced atomically, and return the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        contents = {
            "tls.crt": self.pem,
            "tls.key": self.key_pem,
            "ca.crt": b"".join(each.pem for each in authorities),
        }
        for name, content in contents.items():
            made = folder / f".{name}.new"
            made.write_bytes(content)
            os.replace(made, folder / name)  # noqa: PTH105
        return folder


@dataclass(frozen=True)
class Authority(Issued):
    """An authority that signs certificates."""

    @classmethod
    def make(cls, name: str = "Test authority", signed_by: Authority | None = None) -> Authority:
        """Return a new authority, self-signed unless another authority signs it."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, key, timedelta(days=-1), timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        issuer = subject if signed_by is None else signed_by.certificate.subject
        signer = key if signed_by is None else signed_by.key
        return cls(builder.issuer_name(issuer).sign(signer, hashes.SHA256()), key)

    def issue(
        self,
        hosts: Sequence[str] = HOSTS,
        *,
        key: Key | None = None,
        begins: timedelta = timedelta(hours=-1),
        ends: timedelta = timedelta(hours=1),
        uses: Sequence[x509.ObjectIdentifier] = BOTH_USES,
        critical: x509.ExtensionType | None = None,
    ) -> Issued:
        """Return a certificate for these hosts, with a further critical extension if given."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = _builder(x509.Name([]), key, begins, ends).issuer_name(self.certificate.subject)
        if hosts:
            names = [_name(host) for host in hosts]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        if uses:
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if critical is not None:
            builder = builder.add_extension(critical, critical=True)
        return Issued(builder.sign(self.key, hashes.SHA256()), key)


def _builder(subject: x509.Name, key: Key, begins: timedelta, ends: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
