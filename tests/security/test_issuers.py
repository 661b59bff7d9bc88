"""Signed tokens of an issuer, whose keys come from a server over https, on a real broker (rule A14; proof V6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from audit_kit import Lines
from broker_kit import Calls
from certificate_kit import Authority
from cluster_kit import Cluster
from fairlead_api.audit_events import AuditEvent
from fairlead_broker.identity import issuer_keys
from fairlead_broker.wiring import security
from fairlead_broker.wiring.security import IssuerUnknown
from issuer_kit import KeyServer, TestIssuer
from security_kit import Secured
from waiting import until


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[KeyServer]:
    """Yield a server for an issuer's keys."""
    server = KeyServer(TestIssuer(), Authority.make(), tmp_path / "issuer")
    await server.start()
    yield server
    await server.stop()


async def closed(cluster: Cluster, server: KeyServer, folder: Path, **more: object) -> Secured:
    """Start a broker in `enforce` mode that accepts the tokens of the issuer `corp`."""
    issuer = {
        "issuer": server.issuer.issuer,
        "ca": server.ca,
        "audience": "fairlead/fairlead",
        "groups_claim": "groups",
        **more,
    }
    await cluster.start(
        1, security="enforce", admin_token_file=folder / "admin.token", issuers={"corp": issuer}
    )
    address = cluster.brokers[1].addresses.data
    assert address is not None
    return Secured(cluster, Calls(address), (folder / "admin.token").read_text().strip())


async def status(secured: Secured, token: str) -> int:
    """Return the status of a call with a token."""
    return (await secured.call("GET", "/v1/whoami", token)).status


async def test_a_signed_token_names_principal_and_groups(server: KeyServer, tmp_path: Path) -> None:
    """ACLs apply to the principal and the groups of a signed token (rule A16)."""
    cluster = await Cluster.open(tmp_path)
    try:
        secured = await closed(cluster, server, tmp_path)
        token = server.issuer.token(groups=["payments", "bad name", 7])
        who = await secured.call("GET", "/v1/whoami", token)
        before = await secured.call("GET", "/v1/cluster", token)
        await secured.acl("group:corp:payments", "describe", "cluster:*")
        after = await secured.call("GET", "/v1/cluster", token)
        shown = await secured.call("GET", "/v1/security", secured.admin)
        await secured.calls.__aexit__()

        assert who.json["principal"] == "corp:ann"
        assert who.json["groups"] == ["group:corp:payments"]
        assert (who.json["source"], before.code, after.status) == ("issuer", "forbidden", 200)
        assert [(each["name"], each["keys"]) for each in shown.json["issuers"]] == [("corp", 1)]
    finally:
        await cluster.close()


async def test_outcomes_of_tokens_are_counted_by_source(server: KeyServer, tmp_path: Path) -> None:
    """Metrics count accepted and refused tokens by source, and show known callers and the age of keys (rule A24)."""
    cluster = await Cluster.open(tmp_path)
    try:
        secured = await closed(cluster, server, tmp_path)
        tokens = (secured.admin, server.issuer.token(), server.issuer.token(aud="fairlead/other"))
        statuses = [await status(secured, token) for token in tokens]
        await secured.calls.__aexit__()
        sample = cluster.broker(1).telemetry.registry.get_sample_value
        counted = [
            sample("fairlead_authentications_total", {"source": source, "outcome": outcome})
            for source, outcome in (("api_token", "accepted"), ("corp", "accepted"), ("corp", "refused"))
        ]
        known, age = (
            sample("fairlead_known_callers"),
            sample("fairlead_issuer_keys_age_seconds", {"issuer": "corp"}),
        )

        assert statuses == [200, 200, 401]
        assert counted == [1, 1, 1]
        assert known == 2
        assert age is not None
        assert 0 <= age < float("inf")
    finally:
        await cluster.close()


async def test_a_rotated_key_is_accepted_at_its_first_token(
    server: KeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    """The first token with a new key is accepted; unknown keys cause one fetch in ten seconds and refuse no good token.

    After the broker has fetched the new key, the previous key and the tokens that it verified are refused, and the
    audit log names the new key.
    """
    monkeypatch.setattr(issuer_keys, "ATTEMPT_SECONDS_MIN", 0.0)
    cluster = await Cluster.open(tmp_path)
    try:
        secured = await closed(cluster, server, tmp_path)
        old = server.issuer.token()
        first = await status(secured, old)
        server.issuer.rotate()
        new = server.issuer.token()
        statuses = await status(secured, new), await status(secured, old)
        monkeypatch.undo()
        fetches = server.fetches
        unknown = [server.issuer.token({"kid": f"x{number}"}) for number in range(30)]
        flood, good = await asyncio.gather(
            asyncio.gather(*(status(secured, token) for token in unknown)),
            asyncio.gather(*(status(secured, new) for _ in unknown)),
        )
        await secured.calls.__aexit__()

        assert (first, statuses) == (200, (200, 401))
        assert lines.changes(AuditEvent.ISSUER_KEYS_CHANGED)[-1] == {
            "issuer": "corp",
            "keys": [server.issuer.key.kid],
        }
        assert (set(flood), set(good)) == ({401}, {200})
        assert server.fetches <= fetches + 1
    finally:
        await cluster.close()


async def test_a_restart_does_not_need_the_issuer(server: KeyServer, tmp_path: Path) -> None:
    """A broker starts with the last keys in its data directory, which contains public keys only (rule A17)."""
    cluster = await Cluster.open(tmp_path)
    try:
        secured = await closed(cluster, server, tmp_path)
        token = server.issuer.token()
        first = await status(secured, token)
        file = cluster.broker(1).settings.data / ".fairlead" / "issuer-keys.json"
        await until(file.exists)
        await secured.calls.__aexit__()
        await cluster.stop(1)
        server.answers = False
        secured = await closed(cluster, server, tmp_path)
        second = await status(secured, token)
        await secured.calls.__aexit__()
        [kept] = json.loads(file.read_text()).values()

        assert (first, second) == (200, 200)
        assert set(kept["keys"][0]) == {"kty", "crv", "x", "y", "kid"}
    finally:
        await cluster.close()


async def test_service_accounts_of_kubernetes(
    server: KeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token of a service account names namespace and account; its group is the namespace (rule A18).

    The broker accepts the issuer of its own token, and presents this token when it fetches the issuer's keys. Without a
    token and without the setting of an issuer, the broker does not start.
    """
    monkeypatch.setattr(security, "ACCOUNT_FOLDER", tmp_path)
    cluster = await Cluster.open(tmp_path)
    try:
        more = {"kubernetes": True, "jwks": f"{server.issuer.issuer}/keys", "issuer": None}
        with pytest.raises(IssuerUnknown):
            await closed(cluster, server, tmp_path, **more)
        (tmp_path / "token").write_text(server.issuer.token(sub="system:serviceaccount:shop:broker"))
        secured = await closed(cluster, server, tmp_path, **more)
        token = server.issuer.token(sub="system:serviceaccount:shop:orders")
        who = await secured.call("GET", "/v1/whoami", token)
        other = await status(secured, server.issuer.token(sub="ann"))
        await secured.calls.__aexit__()

        assert server.bearers == {(tmp_path / "token").read_text()}
        assert (who.json["principal"], who.json["groups"]) == ("corp:shop:orders", ["group:corp:shop"])
        assert other == 401
    finally:
        await cluster.close()
