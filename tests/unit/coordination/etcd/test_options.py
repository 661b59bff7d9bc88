from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_broker.coordination.etcd.options import EtcdOptions, EtcdTls, EtcdUser, target_of
from refusals import raises


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "127.0.0.1:2379",
        "etcd:2379",
        "grpc://etcd:2379",
        "http://",
        "http://:2379",
        "http://etcd:port",
        "http://etcd:0",
        "http://etcd:70000",
        "http://user:password@etcd:2379",
        "http://etcd:2379/v3",
        "http://etcd:2379?x=1",
    ],
)
def test_what_is_no_address_of_a_member_is_refused(endpoint: str) -> None:
    """An invalid endpoint is refused, and the message names the endpoint and the required form."""
    with raises(ValueError, "http://host:port") as refusal:
        EtcdOptions((endpoint,))

    assert repr(endpoint) in str(refusal.value)


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("http://etcd:1234", "etcd:1234"),
        ("http://etcd", "etcd:2379"),
        ("https://etcd-0.etcd.svc:2379/", "etcd-0.etcd.svc:2379"),
        ("http://[::1]:2379", "[::1]:2379"),
    ],
)
def test_an_endpoint_becomes_host_and_port(endpoint: str, target: str) -> None:
    """An endpoint without a port gets etcd's default port."""
    assert target_of(EtcdOptions((endpoint,)).endpoints[0]) == target


def test_no_endpoint_is_refused() -> None:
    """Options without an endpoint are refused."""
    with raises(ValueError):
        EtcdOptions(())


def test_mixed_schemes_are_refused() -> None:
    """Endpoints that mix http and https are refused."""
    with raises(ValueError, "https"):
        EtcdOptions(("http://a:1", "https://b:1"))


def test_certificates_without_tls_are_refused() -> None:
    """Certificates for endpoints without TLS are refused, because they would not be used."""
    with raises(ValueError, "https"):
        EtcdOptions(("http://a:1",), EtcdTls(Path("ca.pem")))


@pytest.mark.parametrize("files", [(None, Path("c"), None), (None, None, Path("k"))])
def test_a_certificate_comes_with_its_key(files: tuple[Path | None, Path | None, Path | None]) -> None:
    """A certificate without its key, or a key without its certificate, is refused."""
    with raises(ValueError):
        EtcdTls(*files)


def test_the_password_is_not_shown() -> None:
    """The password is not in the representation of the options."""
    options = EtcdOptions(("http://a:1",), user=EtcdUser("broker", "the password"))

    assert "the password" not in repr(options)
    assert not options.secure
