from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead_operator.brokers.identity import RENEW_SECONDS, OperatorIdentity
from fairlead_operator.naming import CONFIG_MAP, SECRET, SERVICE_ACCOUNT, Manifest, ObjectRef
from memory_api import StandingClock

PLAIN, TLS = "http://brokers:9520", "https://brokers:9524"
ACCOUNT = ObjectRef(SERVICE_ACCOUNT, "ops", "operator")


class Authorities:
    """A cache with the authorities of a Cluster."""

    text = "PEM"

    def get(self, ref: ObjectRef) -> Manifest | None:
        """Return the ConfigMap with the authorities."""
        is_known = ref == ObjectRef(CONFIG_MAP, "shop", "main-ca")
        return {"data": {"ca.crt": self.text}} if is_known else None


class Tokens:
    """An API server with numbered tokens for the operator's account and the brokers' certificate of a Cluster."""

    def __init__(self) -> None:
        """Begin without tokens and without a certificate."""
        self.audiences: list[str] = []
        self.certificate = ""

    async def account_token(self, account: ObjectRef, audience: str, seconds: int) -> str:
        """Return a token."""
        self.audiences.append(audience)
        return f"token-{len(self.audiences)} of {account.name} for {seconds} s"

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """Return the Secret with the certificate."""
        if ref != ObjectRef(SECRET, "shop", "main-brokers-tls") or not self.certificate:
            return None
        content = {"tls.crt": self.certificate, "tls.key": "key"}
        return {"data": {name: b64encode(each.encode()).decode() for name, each in content.items()}}


class Clock(StandingClock):
    """A clock that the test advances."""

    seconds = 0.0

    def monotonic(self) -> float:
        """Return the seconds that the test has set."""
        return self.seconds


def a_cluster(security: dict[str, Any] | None, *listeners: str) -> Manifest:
    """Return the manifest of a Cluster with the bootstrap addresses of its listeners."""
    return {
        "metadata": {"name": "main", "namespace": "shop"},
        "spec": {} if security is None else {"security": security},
        "status": {"listeners": [{"name": "data", "bootstrap": each} for each in listeners]},
    }


@pytest.fixture
def tokens() -> Tokens:
    """Return an API server."""
    return Tokens()


@pytest.fixture
def authorities() -> Authorities:
    """Return a cache."""
    return Authorities()


@pytest.fixture
def clock() -> Clock:
    """Return a clock."""
    return Clock()


@pytest.fixture
def identity(tokens: Tokens, authorities: Authorities, clock: Clock) -> Iterator[OperatorIdentity]:
    """Yield the operator's identity, whose files are removed at the end."""
    identity = OperatorIdentity(tokens, authorities, clock, ACCOUNT, PLAIN, TLS)
    yield identity
    identity.close()


@pytest.mark.parametrize(
    ("cluster", "url", "has_token"),
    [
        (a_cluster(None), None, False),
        (a_cluster(None, "http://a"), None, False),
        (a_cluster({}, "http://a"), None, False),
        (a_cluster({}, "http://a", "https://a"), TLS, True),
        (a_cluster({"mode": "Enforce", "allowPlaintext": True}, "http://a"), PLAIN, True),
        (a_cluster({"serviceAccounts": False}, "https://a"), TLS, False),
        (a_cluster(None, "https://a"), TLS, True),
    ],
)
async def test_brokers_are_called_by_tls_and_a_token_as_soon_as_they_have_them(
    identity: OperatorIdentity, cluster: Manifest, url: str | None, has_token: bool
) -> None:
    """Brokers that have TLS are called over TLS, even after security was removed from the spec (rule A22)."""
    access = await identity.access(cluster)

    assert (None if access is None else access.url) == url
    assert (access is not None and access.token_file is not None) == has_token
    if access is not None and access.ca_file is not None:
        assert access.ca_file.read_text() == "PEM"
        assert access.ca_file.stat().st_mode & 0o077 == 0


async def test_the_token_is_for_one_cluster_and_renewed_at_half_of_its_life(
    identity: OperatorIdentity, tokens: Tokens, authorities: Authorities, clock: Clock
) -> None:
    """The operator's token for a Cluster has only that Cluster as its audience, and is renewed after half its lifetime.

    The files of the token and the authorities are removed when the Cluster is forgotten.
    """
    cluster = a_cluster({}, "https://a")
    first = await identity.access(cluster)
    await identity.access(cluster)
    clock.seconds = RENEW_SECONDS + 1
    authorities.text = "PEM of two"
    second = await identity.access(cluster)
    assert first is not None
    assert second is not None
    assert second.token_file is not None
    assert second.ca_file is not None
    texts = (second.token_file.read_text(), second.ca_file.read_text())
    identity.forget("shop", "main")

    assert tokens.audiences == ["fairlead/shop/main"] * 2
    assert texts == ("token-2 of operator for 600 s", "PEM of two")
    assert identity.superusers == ("k8s:ops:operator",)
    assert not second.token_file.exists()


async def test_the_operator_passes_listeners_that_request_certificates(
    identity: OperatorIdentity, tokens: Tokens, clock: Clock
) -> None:
    """The operator calls brokers with the brokers' certificate, and reads a replaced certificate again."""
    cluster, texts = a_cluster({}, "https://a"), []
    for certificate in ("", "one", "two"):
        tokens.certificate = certificate
        for _ in range(2):
            access = await identity.access(cluster)
            files = None if access is None else access.certificate_files
            texts.append(files and [file.read_text() for file in files])
            clock.seconds += RENEW_SECONDS / 2 + 1

    assert texts == [None, None, ["one", "key"], ["one", "key"], ["two", "key"], ["two", "key"]]
