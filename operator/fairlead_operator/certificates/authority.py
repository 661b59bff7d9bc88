"""Creates authorities and certificates with P-256 keys, and reads them from Secrets (rule K1).

`reconcile.certificates` calls this module and stores the results in Secrets. `plan.securing.certificates` makes all
decisions.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairlead_operator.plan.securing.certificates import (
    AUTHORITY_LIFE,
    BACKDATED,
    LEAF_LIFE,
    CertificateFacts,
)

COMMON_NAME_LENGTH_MAX: Final = 64


@dataclass(frozen=True, slots=True, repr=False)
class Pair:
    """A certificate and its key, in PEM. The class has no `repr`, so that no log shows the key."""

    certificate: bytes
    key: bytes


def new_authority(name: str, now: datetime) -> Pair:
    """Return a new authority that signs certificates."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"Fairlead authority of {name}")
    builder = _builder(subject, subject, key.public_key(), now, AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return _signed(builder, key, key)


def new_certificate(authority: Pair, name: str, hosts: Iterable[str], now: datetime) -> Pair:
    """Return a certificate for server and client use with these host names and IP addresses."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = load_pem_private_key(authority.key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey), "authorities have keys on P-256"
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), issuer.subject, key.public_key(), now, LEAF_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(uses, critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
    )
    names = [_general_name(host) for host in hosts]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _signed(builder, key, issuer_key)


def read_certificate(pem: bytes) -> CertificateFacts | None:
    """Return the facts about the first certificate in PEM; None if the certificate cannot be read."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = _key_digest(certificate)
    except ValueError:
        return None
    return CertificateFacts(
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        authority=_authority_of(certificate),
        key=key,
        names=_names(certificate),
    )


def read_pair(certificate: bytes, key: bytes) -> CertificateFacts | None:
    """Return the facts about a certificate; None if the certificate cannot be read or the key does not match."""
    facts = read_certificate(certificate)
    try:
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError):
        return None
    return facts if facts is not None and _digest(private.public_key()) == facts.key else None


def text_of(data: bytes) -> str:
    """Return the content of a Secret's field."""
    return base64.b64encode(data).decode()


def bytes_of(text: object) -> bytes:
    """Return the bytes in a field of a Secret; empty for an invalid or missing field."""
    try:
        return base64.b64decode(str(text or ""))
    except ValueError:
        return b""


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    begin = now.replace(microsecond=0) - BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> Pair:
    certificate = builder.sign(signer, hashes.SHA256())
    return Pair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:COMMON_NAME_LENGTH_MAX])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    hosts = [str(each) for each in names.get_values_for_type(x509.IPAddress)]
    return frozenset([*names.get_values_for_type(x509.DNSName), *hosts])


def _authority_of(certificate: x509.Certificate) -> str:
    """Return the identifier of the key that signed the certificate; empty if the certificate lacks the identifier."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except x509.ExtensionNotFound:
        return ""
    return (found.key_identifier or b"").hex()


def _key_digest(certificate: x509.Certificate) -> str:
    return _digest(certificate.public_key())


def _digest(key: object) -> str:
    """Return the identifier of a public key in hexadecimal, in the form of authority key identifiers."""
    return x509.SubjectKeyIdentifier.from_public_key(key).digest.hex()  # type: ignore[arg-type]
