"""Fetches of keys: allowed sources, bounds of an answer, and the file of the last keys (rules A14, A17)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from certificate_kit import Authority
from fairlead_broker.clock import SystemClock
from fairlead_broker.credentials.claims import IssuerRules
from fairlead_broker.identity import key_fetching
from fairlead_broker.identity.issuer_keys import IssuerKeys
from fairlead_broker.identity.key_fetching import KeySource, KeysUnavailable, fetch
from fairlead_broker.identity.refreshing import KeyRefresh
from issuer_kit import AUDIENCE, KeyServer, TestIssuer
from waiting import until

LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KeyServer]:
    """Yield a server of the keys of an issuer."""
    server = KeyServer(TestIssuer(), Authority.make(), tmp_path / "issuer")
    await server.start()
    yield server
    await server.stop()


def refresh_of(issuer: TestIssuer, source: KeySource, file: Path) -> tuple[KeyRefresh, IssuerKeys]:
    """Return the upkeep of one issuer's keys."""
    keys = IssuerKeys(IssuerRules(name="corp", issuer=issuer.issuer, audience=AUDIENCE))
    return KeyRefresh({"corp": (keys, source)}, fetch, file, SystemClock(), LOG), keys


async def refused(source: KeySource) -> str:
    """Return the reason for which keys are not fetched."""
    with pytest.raises(KeysUnavailable) as caught:
        await fetch(source)
    return str(caught.value)


async def test_keys_come_from_a_file_or_a_server(server: KeyServer, tmp_path: Path) -> None:
    """Keys are read from a file, from an address, or from the address in the issuer's discovery document."""
    file = tmp_path / "keys.json"
    file.write_bytes(server.issuer.jwks)
    issuer = server.issuer.issuer
    found = [
        await fetch(KeySource(issuer, str(file))),
        await fetch(KeySource(issuer, f"{issuer}/keys", server.ca)),
        await fetch(KeySource(issuer, None, server.ca)),
    ]

    assert found == [server.issuer.jwks] * 3


async def test_what_is_no_source_of_keys(server: KeyServer, tmp_path: Path) -> None:
    """A missing file, an unknown authority, another issuer, a plain address and a bad answer are refused."""
    issuer = server.issuer.issuer
    reasons = [
        await refused(KeySource(issuer, str(tmp_path / "none"))),
        await refused(KeySource(issuer, f"{issuer}/keys")),
        await refused(KeySource(f"{issuer}/", None, server.ca)),
        await refused(KeySource(issuer, "http://a.example/keys")),
    ]
    server.padding = key_fetching.BYTES_MAX
    reasons.append(await refused(KeySource(issuer, f"{issuer}/keys", server.ca)))
    server.answers = False
    reasons.append(await refused(KeySource(issuer, f"{issuer}/keys", server.ca)))

    assert "UnknownIssuer" in reasons[1]
    assert "is for the issuer" in reasons[2]
    assert "neither an https address" in reasons[3]
    assert "answers more than" in reasons[4]
    assert "status 503" in reasons[5]


async def test_the_last_keys_are_kept(server: KeyServer, tmp_path: Path) -> None:
    """A later run has the keys of the last one if it has the same issuer; a file that cannot be read is ignored."""
    file, source = tmp_path / "kept" / "keys.json", KeySource(server.issuer.issuer, None, server.ca)
    refresh, keys = refresh_of(server.issuer, source, file)
    fetching = refresh.wanted("corp", "k1")
    assert fetching is not None
    assert refresh.wanted("corp", "other") is fetching
    await fetching
    again, later = refresh_of(server.issuer, source, file)
    again.load()
    stranger, other = refresh_of(TestIssuer("https://other.example"), source, file)
    stranger.load()
    file.write_bytes(b"?")
    broken, nothing = refresh_of(server.issuer, source, file)
    broken.load()

    assert [key.public for key in later.keys] == [key.public for key in keys.keys] != []
    assert (other.keys, nothing.keys) == ((), ())


async def test_a_failed_fetch_keeps_the_keys(server: KeyServer, tmp_path: Path) -> None:
    """The background fetch brings the keys at the start; a failed one says why and leaves them."""
    refresh, keys = refresh_of(
        server.issuer, KeySource(server.issuer.issuer, None, server.ca), tmp_path / "keys"
    )
    running = asyncio.get_running_loop().create_task(refresh.run())
    await until(lambda: keys.keys)
    before = keys.keys
    server.answers = False
    await refresh._begin("corp")
    running.cancel()
    await asyncio.wait([running])

    assert keys.keys == before
    assert keys.failing is not None
    assert json.loads((tmp_path / "keys").read_text())["corp"]["issuer"] == server.issuer.issuer
