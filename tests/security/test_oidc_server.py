"""Tokens of a real OIDC provider on a real broker (rules A14, A15, A17; proof V6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_kit import Calls
from cluster_kit import Cluster
from fairlead_broker.identity import issuer_keys
from figures import record
from oidc_server import CLIENTS, USER_ID, OidcServer, program
from security_kit import Secured


@pytest.mark.slow
@pytest.mark.scenario
@pytest.mark.timeout(900)
async def test_tokens_of_a_real_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token from the provider's flow names its user, and the first token with a new key is also accepted.

    A token for a different audience is refused, and so is the old token after the key has changed. The broker finds the
    keys through the discovery document.
    """
    monkeypatch.setattr(issuer_keys, "ATTEMPT_SECONDS_MIN", 0.0)
    await asyncio.to_thread(program)
    server = OidcServer.create(tmp_path / "issuer")
    await asyncio.to_thread(server.start)
    cluster = await Cluster.open(tmp_path)
    file = tmp_path / "admin.token"
    issuer = {"issuer": server.issuer, "ca": server.ca, "audience": CLIENTS[0]}
    try:
        await cluster.start(1, security="enforce", admin_token_file=file, issuers={"corp": issuer})
        async with Calls(str(cluster.brokers[1].addresses.data)) as calls:
            secured = Secured(cluster, calls, file.read_text().strip())
            await secured.acl(f"corp:{USER_ID}", "describe", "cluster:*")
            old, other = [await asyncio.to_thread(server.token, each) for each in CLIENTS]
            who = await secured.call("GET", "/v1/whoami", old)
            allowed = await secured.call("GET", "/v1/cluster", old)
            refused = await secured.call("GET", "/v1/whoami", other)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            new = await secured.call("GET", "/v1/cluster", await asyncio.to_thread(server.token))
            late = await secured.call("GET", "/v1/whoami", old)
    finally:
        await cluster.close()
        await asyncio.to_thread(server.stop)

    statuses = {
        "first_key": who.status,
        "new_key": new.status,
        "another_audience": refused.status,
        "first_key_after_the_new_key": late.status,
    }
    record("tokens of a real OIDC provider", statuses)

    assert (who.json["principal"], allowed.status, new.status) == (f"corp:{USER_ID}", 200, 200)
    assert [(each.status, each.json["reason"]) for each in (refused, late)] == [(401, "refused")] * 2
