"""Certificates, keys and authorities that a listener may use, and refusals that name file, fault and rule."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from certificate_kit import Authority, Issued
from fairlead_broker.certificates.material import MaterialRefused, Side, is_named, read_material
from fairlead_broker.clock import SystemClock
from refusals import raises

AUTHORITY = Authority.make()
GOOD = AUTHORITY.issue()
HOUR = timedelta(hours=1)


def read(folder: Path, side: Side = Side.DATA, hosts: tuple[str, ...] = ("localhost",)) -> object:
    """Read a certificate folder as the broker does."""
    return read_material(folder, side, hosts=hosts, now_us=SystemClock().now_us())


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(lambda: ec.generate_private_key(ec.SECP256R1()), id="P-256"),
        pytest.param(lambda: ec.generate_private_key(ec.SECP384R1()), id="P-384"),
        pytest.param(ed25519.Ed25519PrivateKey.generate, id="Ed25519"),
        pytest.param(lambda: rsa.generate_private_key(65537, 2048), id="RSA"),
    ],
)
@pytest.mark.parametrize("side", list(Side))
def test_good_material_is_readable_by_tls(
    key: Callable[[], ec.EllipticCurvePrivateKey], side: Side, tmp_path: Path
) -> None:
    """A certificate with an allowed kind of key is accepted, and TLS libraries can load its rewritten files."""
    issued = AUTHORITY.issue(key=key())
    material = read_material(
        issued.write(tmp_path, AUTHORITY),
        side,
        hosts=("localhost", "127.0.0.1"),
        now_us=SystemClock().now_us(),
    )
    (tmp_path / "both.pem").write_bytes(material.key_pem + material.chain_pem)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "both.pem")

    assert material.facts.certificate_sha256 == issued.sha256
    assert material.facts.ca_sha256 == (AUTHORITY.sha256,)
    assert material.client_ca_pem == (AUTHORITY.pem if side is Side.PEER else None)


def test_a_chain_through_an_intermediate_authority_is_accepted_from_peers(tmp_path: Path) -> None:
    """A peer's certificate may be signed by an intermediate authority, which an authority in `ca.crt` has signed."""
    between = Authority.make("Between", signed_by=AUTHORITY)
    folder = between.issue().write(tmp_path, AUTHORITY)
    with pytest.raises(MaterialRefused):
        read(folder, Side.PEER)
    with (folder / "tls.crt").open("ab") as chain:
        chain.write(between.pem)

    read(folder, Side.PEER)


WRONG: dict[str, tuple[Callable[[], Issued], str, str]] = {
    "expired": (lambda: AUTHORITY.issue(begins=-2 * HOUR, ends=-HOUR), "tls.crt", "expired"),
    "not yet": (lambda: AUTHORITY.issue(begins=HOUR, ends=2 * HOUR), "tls.crt", "valid"),
    "other host": (lambda: AUTHORITY.issue(["broker-1"]), "tls.crt", "localhost"),
    "no names": (lambda: AUTHORITY.issue([]), "tls.crt", "localhost"),
    "client only": (lambda: AUTHORITY.issue(uses=[ExtendedKeyUsageOID.CLIENT_AUTH]), "tls.crt", "serverAuth"),
    "small RSA": (lambda: AUTHORITY.issue(key=rsa.generate_private_key(65537, 1024)), "tls.crt", "1024"),
    "other curve": (lambda: AUTHORITY.issue(key=ec.generate_private_key(ec.SECP521R1())), "tls.crt", "secp521r1"),
    "DSA": (lambda: AUTHORITY.issue(key=dsa.generate_private_key(2048)), "tls.crt", "DSAPublicKey"),
    "other key": (
        lambda: Issued(GOOD.certificate, ec.generate_private_key(ec.SECP256R1())), "tls.key", "key",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_certificate_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """A wrong certificate is refused, and the error names the file and the fault (rule T6)."""
    make, file, fault = WRONG[name]
    with raises(MaterialRefused, fault, file=tmp_path / file):
        read(make().write(tmp_path, AUTHORITY))


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize(
    "content",
    [
        None, b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", b"\xff" * 100, b"x" * (2 << 20),
    ],
    ids=["missing", "empty", "garbage", "bad certificate", "bad key", "binary", "large"],
)  # fmt: skip
def test_an_unreadable_file_is_refused_by_name(name: str, content: bytes | None, tmp_path: Path) -> None:
    """A missing file, or a file without a valid certificate or key, is refused, and the error names its path."""
    GOOD.write(tmp_path, AUTHORITY)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(MaterialRefused) as refused:
        read(tmp_path)

    assert refused.value.file == tmp_path / name


def test_an_authority_that_only_one_tls_library_reads_is_refused(tmp_path: Path) -> None:
    """An authority whose name has a type that OpenSSL does not allow in names is refused, also as one of several."""
    folder = GOOD.write(tmp_path, AUTHORITY)
    content = AUTHORITY.certificate.public_bytes(Encoding.DER)
    name = b"\x0c\x0eTest authority"
    assert content.count(name) == 2
    octets = content.replace(name, b"\x04" + name[1:])
    with (folder / "ca.crt").open("a") as bundle:
        bundle.write(ssl.DER_cert_to_PEM_cert(octets))

    with raises(MaterialRefused, file=folder / "ca.crt"):
        read(folder)


def test_an_encrypted_key_is_refused(tmp_path: Path) -> None:
    """A key with a password is refused, because the broker cannot ask for the password."""
    GOOD.write(tmp_path, AUTHORITY)
    encrypted = GOOD.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    (tmp_path / "tls.key").write_bytes(encrypted)

    with pytest.raises(MaterialRefused):
        read(tmp_path)


@pytest.mark.parametrize(
    ("issued", "authority", "fault"),
    [
        (AUTHORITY.issue(), Authority.make("Stranger"), "authority"),
        (AUTHORITY.issue(uses=[ExtendedKeyUsageOID.SERVER_AUTH]), AUTHORITY, "clientAuth"),
        (AUTHORITY.issue(), GOOD, "certificate"),
    ],
    ids=["stranger", "server only", "no authority"],
)
def test_peers_need_a_certificate_of_the_cluster(
    issued: Issued, authority: Issued, fault: str, tmp_path: Path
) -> None:
    """A certificate that other brokers would not accept is refused for the peer listener."""
    with raises(MaterialRefused, fault):
        read(issued.write(tmp_path, authority), Side.PEER)


@pytest.mark.parametrize(
    ("host", "name", "named"),
    [
        ("a.example", "a.example", True),
        ("a.example", "*.example", True),
        ("a.b.example", "*.example", False),
        ("example", "*.example", False),
        ("b.example", "a.example", False),
    ],
)
def test_a_wildcard_covers_one_label(host: str, name: str, named: bool) -> None:
    """The names of certificates are compared according to the rules of TLS clients: a wildcard matches one label."""
    assert is_named(host, name) is named


def test_material_shows_no_key(tmp_path: Path) -> None:
    """The repr of the material does not show the private key, so that no log line can contain the key."""
    assert "PRIVATE" not in repr(read(GOOD.write(tmp_path, AUTHORITY)))
