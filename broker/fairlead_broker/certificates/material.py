"""TLS material: the certificate chain, key and certificate authorities of one listener, read and checked (rule T6).

`watching` calls `read_material` at startup and after each change of the files. The checks are strict because granian
ends the process if it cannot read a file, and serves without client certificates if the authority is missing. Only this
module and the proofs of brokers use the package `cryptography`. The module must not depend on listeners.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, PublicKeyAlgorithmOID

from fairlead_broker.certificates.files import CA_FILE, CHAIN_FILE, KEY_FILE

FILE_BYTES_MAX: Final = 1 << 20
"""Maximum size of a file in bytes. A bundle of all public authorities is a quarter of this size."""
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 4096
"""Maximum size of an RSA key in bits. Each handshake with a larger key takes tens of milliseconds of the only TLS
thread.
"""

_KEYS_ALLOWED: Final = f"RSA of {RSA_BITS_MIN} to {RSA_BITS_MAX} bits, EC on P-256 or P-384, Ed25519"
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1)
_HASHES: Final = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
_CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH
_PURPOSES: Final = {_SERVER: "serverAuth", _CLIENT: "clientAuth"}
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    InternalError,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Exceptions of the package `cryptography` for certificates and keys that it cannot read."""


class MaterialRefused(ValueError):
    """Raised for a file that TLS must not use. The message names the file, its fault and what is allowed."""

    def __init__(self, file: Path, fault: str, allowed: str) -> None:
        super().__init__(f"{file}: {fault}; allowed: {allowed}")
        self.file = file
        self.fault = fault
        self.allowed = allowed


class Side(Enum):
    """Listener that presents the certificate."""

    DATA = "data"
    PEER = "peer"
    """Listener for other brokers. A broker also presents this certificate when it calls another broker."""
    OPS = "ops"


@dataclass(frozen=True, slots=True)
class LoadedCertificate:
    """Facts about the certificate in use that a registration and the metrics show."""

    certificate_sha256: str
    """SHA-256 of the leaf certificate in lower-case hexadecimal digits."""
    not_before_us: int
    not_after_us: int
    ca_sha256: tuple[str, ...]
    """SHA-256 of each certificate in `ca.crt`, in the order of the file."""


@dataclass(frozen=True, slots=True, repr=False)
class Material:
    """Checked material, encoded again for TLS libraries. The class has no `repr`, because it contains a private key."""

    chain_pem: bytes
    key_pem: bytes
    ca_pem: bytes
    client_ca_pem: bytes | None
    """Certificate authorities whose clients may connect; None if clients need no certificate."""
    facts: LoadedCertificate


def read_material(
    folder: Path,
    side: Side,
    *,
    hosts: Iterable[str],
    now_us: int,
    client_ca: tuple[Path, ...] = (),
) -> Material:
    """Read and check `tls.crt`, `tls.key` and `ca.crt` in `folder`, and the files `client_ca`.

    `hosts` are the names and IP addresses that callers of the listener use. Callers of the peer listener need a
    certificate that an authority in `ca.crt` has signed. Raises `MaterialRefused`.
    """
    chain_file, ca_file = folder / CHAIN_FILE, folder / CA_FILE
    chain = _certificates(chain_file)
    leaf = chain[0]
    _check_validity(chain_file, leaf, now_us)
    _check_algorithms(chain_file, chain)
    _check_purpose(chain_file, leaf, [_SERVER, _CLIENT] if side is Side.PEER else [_SERVER])
    _check_names(chain_file, leaf, hosts)
    key_pem = _key(folder / KEY_FILE, leaf)
    authorities = _authorities(ca_file)
    client_ca_pem = b"".join(_pem(_authorities(file)) for file in client_ca) or None
    if side is Side.PEER:
        _check_signed_by(chain_file, chain, ca_file, authorities)
        client_ca_pem = _pem(authorities)
    return Material(
        chain_pem=_pem(chain),
        key_pem=key_pem,
        ca_pem=_pem(authorities),
        client_ca_pem=client_ca_pem,
        facts=LoadedCertificate(
            certificate_sha256=_sha256(leaf),
            not_before_us=_us(leaf.not_valid_before_utc),
            not_after_us=_us(leaf.not_valid_after_utc),
            ca_sha256=tuple(_sha256(each) for each in authorities),
        ),
    )


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise MaterialRefused(
            file, f"cannot be read: {error.strerror}", "a file that the broker may read"
        ) from error
    if len(content) > FILE_BYTES_MAX:
        raise MaterialRefused(file, "is too large", f"at most {FILE_BYTES_MAX} bytes")
    return content


def _certificates(file: Path) -> list[x509.Certificate]:
    """Return the certificates of a PEM file, which must contain at least one certificate."""
    try:
        found = x509.load_pem_x509_certificates(_content(file))
        for each in found:
            # Parsing is lazy: a broken extension, key or name raises an error only when it is read.
            _ = each.extensions, each.public_key(), each.not_valid_after_utc, each.issuer, each.subject
    except _UNREADABLE as error:
        raise MaterialRefused(
            file, f"holds no readable certificates ({error})", "certificates in PEM, the broker's own first"
        ) from error
    _check_by_openssl(file, found)
    return found


def _check_by_openssl(file: Path, certificates: Iterable[x509.Certificate]) -> None:
    """Check that OpenSSL reads each certificate: it refuses some names that `cryptography` and rustls accept.

    The ops listener, the Kafka listener and the clients' checks of their files use OpenSSL.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for each in certificates:
        try:
            context.load_verify_locations(cadata=each.public_bytes(Encoding.DER))
        except ssl.SSLError as error:
            raise MaterialRefused(
                file,
                f"OpenSSL cannot read certificate {_name(each)}",
                "certificates that TLS libraries can read",
            ) from error


def _check_validity(file: Path, leaf: x509.Certificate, now_us: int) -> None:
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not _us(begin) <= now_us <= _us(end):
        fault = "the certificate has expired" if now_us > _us(end) else "the certificate is not valid yet"
        raise MaterialRefused(
            file,
            fault,
            f"a certificate that is valid now; this one is valid from {begin:%F %TZ} to {end:%F %TZ}",
        )


def _check_algorithms(file: Path, chain: Iterable[x509.Certificate]) -> None:
    for each in chain:
        _check_key(file, each.public_key(), each.public_key_algorithm_oid)
        is_root = each.issuer == each.subject
        try:
            hashed = each.signature_hash_algorithm
        except UnsupportedAlgorithm:
            hashed = hashes.MD5()  # noqa: S303 - stands for any weak hash, which is refused
        # Ed25519 has no separate hash. No peer verifies the signature of a root.
        if not is_root and hashed is not None and not isinstance(hashed, _HASHES):
            raise MaterialRefused(
                file,
                f"the signature of certificate {_name(each)} uses {hashed.name}",
                "signatures with SHA-256, SHA-384, SHA-512 or Ed25519",
            )


def _check_key(file: Path, key: object, algorithm: x509.ObjectIdentifier) -> None:
    match key:
        case rsa.RSAPublicKey():
            right = RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX
            right = right and algorithm == PublicKeyAlgorithmOID.RSAES_PKCS1_v1_5
            shown = f"RSA of {key.key_size} bits"
        case ec.EllipticCurvePublicKey():
            right, shown = isinstance(key.curve, _CURVES), f"EC on {key.curve.name}"
        case _:
            right, shown = isinstance(key, ed25519.Ed25519PublicKey), type(key).__name__
    if not right:
        raise MaterialRefused(file, f"the key is {shown}", _KEYS_ALLOWED)


def _check_purpose(file: Path, leaf: x509.Certificate, wanted: Iterable[x509.ObjectIdentifier]) -> None:
    """Check the extended key usage. A certificate without this extension may be used for every purpose."""
    try:
        usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    for each in wanted:
        if each not in usage:
            names = " and ".join(_PURPOSES[purpose] for purpose in wanted)
            raise MaterialRefused(
                file, f"the certificate is not for {_PURPOSES[each]}", f"extended key usage {names}, or none"
            )


def _check_names(file: Path, leaf: x509.Certificate, hosts: Iterable[str]) -> None:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    dns = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
    addresses = names.get_values_for_type(x509.IPAddress)
    for host in hosts:
        try:
            named = ipaddress.ip_address(host) in addresses
        except ValueError:
            named = any(is_named(host.lower(), each) for each in dns)
        if not named:
            known = ", ".join([*dns, *map(str, addresses)]) or "none"
            raise MaterialRefused(
                file,
                f"the certificate does not cover {host}, the name that callers use for the broker",
                f"a certificate with each advertised host as a subject alternative name; its names: {known}",
            )


def is_named(host: str, name: str) -> bool:
    """Return whether a name in a certificate covers a host. In the name, `*.` covers exactly one label."""
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:]
    return host == name


def _key(file: Path, leaf: x509.Certificate) -> bytes:
    """Return the key of the leaf certificate as PKCS #8."""
    try:
        key = load_pem_private_key(_content(file), None)
    except TypeError as error:
        raise MaterialRefused(file, "the key is encrypted", "a key in PEM without a password") from error
    except _UNREADABLE as error:
        raise MaterialRefused(file, "holds no readable key", "a key in PEM without a password") from error
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if public != leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
        raise MaterialRefused(
            file, "is not the key of the certificate", f"the key of the first certificate in {CHAIN_FILE}"
        )
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _authorities(file: Path) -> list[x509.Certificate]:
    """Return the authorities' certificates in a file. At least one authority must be allowed to sign."""
    found = _certificates(file)
    if not any(_may_sign(each) for each in found):
        raise MaterialRefused(
            file, "no certificate may sign others", "certificates of authorities (basic constraints: CA)"
        )
    return found


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        return False
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return constraints.ca
    return constraints.ca and usage.key_cert_sign


def _check_signed_by(
    file: Path, chain: list[x509.Certificate], ca_file: Path, authorities: list[x509.Certificate]
) -> None:
    """Check that the chain leads to an authority, so that the other brokers accept the certificate."""
    for position, each in enumerate(chain):
        if any(_is_issued_by(each, authority) for authority in authorities if _may_sign(authority)):
            return
        following = chain[position + 1 : position + 2]
        if not following or not _is_issued_by(each, following[0]):
            break
    raise MaterialRefused(
        file,
        f"the certificate is not signed by an authority in {ca_file}",
        f"a certificate signed by the cluster's authority, with any intermediate certificates in {CHAIN_FILE}",
    )


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def _sha256(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def _us(time: datetime) -> int:
    return int(time.timestamp()) * 1_000_000


def _name(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "without a name"
