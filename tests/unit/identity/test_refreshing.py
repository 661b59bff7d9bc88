"""Fetching an issuer's keys: allowed sources, limits of an answer, and the file of the latest keys (rules A14, A17)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import CapturingLogger

from certificate_kit import Authority
from fairlead_api.identifiers import TimestampUs
from fairlead_broker.clock import Clock, SystemClock
from fairlead_broker.credentials.claims import IssuerRules
from fairlead_broker.identity import key_fetching
from fairlead_broker.identity.issuer_keys import HELD_SECONDS, IssuerKeys
from fairlead_broker.identity.key_fetching import KeySource, KeysUnavailable, fetch
from fairlead_broker.identity.refreshing import KeyRefresh
from fairlead_broker.telemetry import Log
from issuer_kit import AUDIENCE, KeyServer, TestIssuer
from waiting import until

LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
SHORT = {"kty": "RSA", "kid": "short", "n": "AQAB", "e": "AQAB"}
FOR_ENCRYPTION = {"kty": "RSA", "kid": "encryption", "use": "enc"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KeyServer]:
    """Yield a running server that publishes an issuer's keys."""
    server = KeyServer(TestIssuer(), Authority.make(), tmp_path / "issuer")
    await server.start()
    yield server
    await server.stop()


class HandClock(SystemClock):
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def now_us(self) -> TimestampUs:
        """Return the time of the machine, moved ahead."""
        return TimestampUs(super().now_us() + int(self.ahead_seconds * 1e6))


def refresh_of(
    issuer: TestIssuer, source: KeySource, file: Path, clock: Clock | None = None, log: Log = LOG
) -> tuple[KeyRefresh, IssuerKeys]:
    """Return the periodic refresh of one issuer's keys, and the keys."""
    keys = IssuerKeys(IssuerRules(name="corp", issuer=issuer.issuer, audience=AUDIENCE))
    return KeyRefresh({"corp": (keys, source)}, fetch, file, clock or SystemClock(), log), keys


async def refused(source: KeySource) -> str:
    """Return the reason why keys cannot be fetched from a source."""
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
    """Keys are not fetched from a missing file, an http address, or a server with an unknown authority.

    Keys of another issuer, and an answer that is too large or has an error status, are refused.
    """
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
    assert issuer in reasons[2]
    assert "https" in reasons[3]
    assert "answers more than" in reasons[4]
    assert "status 503" in reasons[5]


async def test_the_last_keys_are_kept(server: KeyServer, tmp_path: Path) -> None:
    """After a restart a broker uses the stored keys of the same issuer, and ignores a file that cannot be read."""
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


async def test_keys_that_do_not_change_are_valid_for_a_day_after_a_restart(
    server: KeyServer, tmp_path: Path
) -> None:
    """The stored keys are valid for a day after the last successful fetch, not after the last change of the keys."""
    file, clock, key_id = tmp_path / "keys.json", HandClock(), server.issuer.key.kid
    source = KeySource(server.issuer.issuer, None, server.ca)
    refresh, _ = refresh_of(server.issuer, source, file, clock)
    for _ in range(2):
        await refresh._begin("corp")
        clock.ahead_seconds += HELD_SECONDS - 60
    restarted, keys = refresh_of(server.issuer, source, file, clock)
    restarted.load()
    found = keys.find(key_id, clock.now_us())
    clock.ahead_seconds += 120

    assert found is not None
    assert keys.find(key_id, clock.now_us()) is None


async def test_a_failed_fetch_keeps_the_keys(server: KeyServer, tmp_path: Path) -> None:
    """A background task fetches an issuer's keys when a broker starts.

    A failed fetch keeps the previous keys and records the error.
    """
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


async def test_a_skipped_key_is_logged_once(tmp_path: Path) -> None:
    """For each skipped key, one warning names the issuer, the key id and the reason, but not the key (rule A15).

    A key that the previous set contains as well is not logged again, unless it was absent in between.
    """
    issuer, file, logged = TestIssuer(), tmp_path / "keys.json", CapturingLogger()
    source, log = KeySource(issuer.issuer, str(file)), structlog.wrap_logger(logged, processors=[])
    refresh, keys = refresh_of(issuer, source, tmp_path / "kept.json", log=log)
    good = json.loads(issuer.jwks)["keys"]
    sets = [[SHORT], [SHORT, FOR_ENCRYPTION, *good], [SHORT, FOR_ENCRYPTION, *good], good, [SHORT, *good]]
    warnings, counts = [], []
    for listed in sets:
        file.write_text(json.dumps({"keys": listed}))
        logged.calls.clear()
        await refresh._begin("corp")
        warnings.append([call.kwargs for call in logged.calls if call.method_name == "warning"])
        counts.append(len(keys.keys))

    assert counts == [0, 1, 1, 1, 1]
    assert [[line["key_id"] for line in lines] for lines in warnings] == [
        ["short"], ["encryption"], [], [], ["short"],
    ]  # fmt: skip
    assert {(line["event"], line["issuer"]) for lines in warnings for line in lines} == {
        ("issuer key skipped", "corp")
    }
    assert "17 bits" in warnings[0][0]["reason"]
    assert "enc" in warnings[1][0]["reason"]
    assert "AQAB" not in str(warnings)
