"""Secrets, certificates and modes of real brokers change under load, and no acknowledged record is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker_kit import Calls
from certificate_kit import Authority, Issued
from fairlead import Admin
from fairlead.connection import pool
from fairlead.errors import UnauthenticatedError
from figures import record
from issuer_kit import KeyServer, TestIssuer
from secured_processes import STEP_SECONDS_MAX, TOPIC, Load, Prober, Processes, outcome_of, processes
from waiting import pause, until

pytestmark = [pytest.mark.slow, pytest.mark.etcd, pytest.mark.scenario]
LOOK_SECONDS = 1.0
"""Interval at which clients check their files in these tests."""
TWO_IN_SYNC = {"min.insync.replicas": 2}


async def until_true(met: Callable[[], Awaitable[object]]) -> None:
    """Repeat a check until it returns True."""
    async with asyncio.timeout(STEP_SECONDS_MAX):
        while not await met():
            await pause(0.2)


async def admit(admin: Admin, principal: str) -> None:
    """Grant a principal the rights that a load needs."""
    for kind in ("topic", "group", "producer"):
        await admin.create_acl(principal, ["all"], kind, "*")


async def open_cluster(administrator: Admin, urls: list[str]) -> None:
    """Set the mode `open`, and wait until every broker answers a caller without a token."""
    await administrator.alter_cluster_config({"security.mode": "open"})
    for url in urls:
        async with Admin(url, retry_timeout="1s") as admin:

            async def is_open(admin: Admin = admin) -> bool:
                try:
                    await admin.list_topics()
                except UnauthenticatedError:
                    return False
                return True

            await until_true(is_open)


@dataclass
class Scene:
    """Enforcing brokers, and the files that tests replace."""

    cluster: Processes
    admin: Admin
    tls: Path
    bundle: Path
    ann: Path
    bob: Path
    bearer: Path
    server: KeyServer
    probers: list[Prober]

    async def load(self, leaf: Issued, *authorities: Issued) -> None:
        """Write certificates for every broker, and wait until all brokers report and present them."""
        leaf.write(self.tls, *authorities)
        self.cluster.look_at_files()
        expected = leaf.sha256, {each.sha256 for each in authorities}

        async def are_used() -> bool:
            found = (await self.admin.security_status()).certificates
            return all((each.certificate_sha256, set(each.authorities_sha256)) == expected for each in found)

        await until_true(are_used)
        await until(lambda: all(leaf.sha256 in each.certificates for each in self.probers), STEP_SECONDS_MAX)

    async def trust(self, *authorities: Issued) -> None:
        """Write the authorities that clients trust, and wait until clients have checked the file."""
        self.bundle.write_bytes(b"".join(each.pem for each in authorities))
        await pause(2 * LOOK_SECONDS)


async def replace_leaf(scene: Scene, old: Authority, later: Authority) -> None:
    """Replace the certificate of every broker."""
    del later
    await scene.load(old.issue(), old)


async def replace_authority(scene: Scene, old: Authority, later: Authority) -> None:
    """Replace the authority: trust both authorities, sign with the new one, then trust only the new authority."""
    await scene.trust(old, later)
    await scene.load(old.issue(), old, later)
    leaf = later.issue()
    await scene.load(leaf, old, later)
    await scene.load(leaf, later)
    await scene.trust(later)


async def replace_token(scene: Scene, *_: Authority) -> None:
    """Replace the token of a caller, and revoke the previous token."""
    before = scene.ann.read_text().split("_")[1]
    scene.ann.write_text((await scene.admin.create_token("user:ann")).token)

    assert await scene.admin.revoke_token(before) is True


async def replace_keys(scene: Scene, *_: Authority) -> None:
    """Replace the issuer's key, and the token with which brokers fetch keys; the first new token causes the fetches."""
    server = scene.server
    before = server.fetches
    scene.bearer.write_text("second")
    server.issuer.rotate()
    scene.bob.write_text(server.issuer.token(sub="bob"))

    async def are_fetched() -> bool:
        return server.fetches >= before + len(scene.cluster.nodes) and "second" in server.bearers

    await until_true(are_fetched)


@pytest.mark.timeout(900)
async def test_everything_secret_is_replaced_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates, the authority, an API token, the keys of an issuer and the token for fetching them are replaced.

    No send fails, every acknowledged record is read, and no new TLS connection is refused at any time (rule T8).
    """
    monkeypatch.setattr(pool, "LOOK_SECONDS", LOOK_SECONDS)
    old, later = Authority.make(), Authority.make("Later authority")
    server = KeyServer(TestIssuer(), Authority.make("Issuer"), tmp_path / "issuer")
    await server.start()
    files = {name: tmp_path / name for name in ("bundle", "ann", "bob", "bearer")}
    files["bundle"].write_bytes(old.pem)
    files["bearer"].write_text("first")
    tls = old.issue().write(tmp_path / "tls", old)
    settings = {
        "tls": str(tls), "security": "enforce", "admin_token_file": str(tmp_path / "admin"),
        "issuers__corp__issuer": server.issuer.issuer, "issuers__corp__ca": str(server.ca),
        "issuers__corp__bearer_file": str(files["bearer"]),
    }  # fmt: skip
    try:
        async with processes(tmp_path, "https", "https", **settings) as cluster:
            urls = cluster.bootstrap("https")
            async with Admin(urls, ca_file=files["bundle"], token_file=tmp_path / "admin") as admin:
                await admin.create_topic(
                    TOPIC, partitions=3, replication_factor=3, config={"min.insync.replicas": 2}
                )
                files["ann"].write_text((await admin.create_token("user:ann")).token)
                files["bob"].write_text(server.issuer.token(sub="bob"))
                for principal in ("user:ann", "corp:bob"):
                    await admit(admin, principal)
                loads = [
                    Load(name, urls, ca_file=files["bundle"], token_file=files[name])
                    for name in ("ann", "bob")
                ]
                probers = [Prober(url, files["bundle"], tmp_path / "admin") for url in urls]
                scene = Scene(cluster, admin, tls, **files, server=server, probers=probers)
                clients = (*loads, *probers)
                async with asyncio.TaskGroup() as tasks:
                    for client in clients:
                        tasks.create_task(client.run())
                    for step in (replace_leaf, replace_token, replace_keys, replace_authority):
                        await asyncio.gather(*(client.goes_on() for client in clients))
                        await step(scene, old, later)
                    await asyncio.gather(*(client.goes_on() for client in clients))
                    for client in clients:
                        client.end()
                shown = (await admin.security_status()).certificates
        replaced = ["certificate", "API token", "keys of the issuer", "token for fetching keys", "authority"]
        record("replaced under load", {"replaced": replaced, "brokers": 3, **outcome_of(loads, probers)})

        assert [failure for each in probers for failure in each.failures] == []
        assert all(load.read.issuperset(load.sent) for load in loads)
        assert {tuple(each.authorities_sha256) for each in shown} == {(later.sha256,)}
    finally:
        await server.stop()


@pytest.mark.timeout(900)
async def test_the_steps_to_security_and_back(tmp_path: Path) -> None:
    """A running cluster changes step by step from open to enforcing, and back to open, under load.

    Earlier clients work until the step that excludes them, and no send of earlier or new clients fails.
    """
    authority = Authority.make()
    tls = authority.issue().write(tmp_path / "tls", authority)
    ca = tls / "ca.crt"
    files = {name: tmp_path / f"{name}.token" for name in ("root", "ann")}
    async with processes(tmp_path, "http", "http") as cluster, asyncio.TaskGroup() as tasks:
        plain, secure = cluster.bootstrap("http"), cluster.bootstrap("https")
        async with Admin(plain) as admin:
            await admin.create_topic(TOPIC, partitions=3, replication_factor=3, config=TWO_IN_SYNC)
        old = Load("old", plain)
        old_task = tasks.create_task(old.run())
        await old.goes_on()
        cluster.set(peer_tls=str(tls))
        await cluster.roll(old, data="http", peer="http")
        await cluster.roll(old, data="http", peer="https")
        cluster.set(tls=str(tls))
        await cluster.roll(old, data="http,https", peer="https")
        async with Admin(secure, ca_file=ca) as admin:
            for name, file in files.items():
                file.write_text((await admin.create_token(f"user:{name}")).token)
            for kind in ("topic", "group", "producer", "cluster", "security"):
                await admin.create_acl("user:root", ["all"], kind, "*")
            await admit(admin, "user:ann")
        new = Load("new", secure, ca_file=ca, token_file=files["ann"])
        new_task = tasks.create_task(new.run())
        async with Admin(secure, ca_file=ca, token_file=files["root"]) as admin:
            await admin.alter_cluster_config({"security.mode": "observe"})
            await asyncio.gather(old.goes_on(), new.goes_on())
            denied = {each.principal for each in (await admin.security_status()).would_be_denied}
            old.end()
            await old_task
            await admin.alter_cluster_config({"security.mode": "enforce"})
            await new.goes_on()
            async with Admin(plain, retry_timeout="1s") as stranger:
                with pytest.raises(UnauthenticatedError):
                    await stranger.list_topics()
            await cluster.roll(new, data="https", peer="https")
            await cluster.roll(new, data="http,https", peer="https")
            await open_cluster(admin, plain)
        again = Load("again", plain)
        again_task = tasks.create_task(again.run())
        await asyncio.gather(new.goes_on(), again.goes_on())
        new.end()
        await new_task
        cluster.set(tls=None)
        await cluster.roll(again, data="http", peer="https")
        await cluster.roll(again, data="http", peer="http")
        cluster.set(peer_tls=None)
        await cluster.roll(again, data="http", peer="http")
        again.end()
        await again_task
    restarts = {"brokers": len(cluster.nodes), "restarts": cluster.restarts}
    record("from open to enforcing and back", restarts | outcome_of((old, new, again)))

    assert "user:ann" not in denied
    assert all(load.read.issuperset(load.sent) for load in (old, new, again))


async def test_without_coordination_the_last_rules_hold(tmp_path: Path) -> None:
    """While etcd does not answer, known tokens are accepted and none can be revoked; a metric shows how long.

    After etcd answers again, a revoked token is refused (proof V8).
    """
    settings = {"security": "enforce", "admin_token_file": str(tmp_path / "admin"), "lease_seconds": "3"}
    async with processes(tmp_path, "http", "http", brokers=1, **settings) as cluster:
        [node] = cluster.nodes
        [member] = cluster.etcd.members
        admin = (tmp_path / "admin").read_text().strip()
        async with (
            Calls(f"127.0.0.1:{node.plain}", token=admin) as calls,
            Calls.http1(f"127.0.0.1:{node.ops}") as ops,
        ):
            made = (await calls.post("/v1/tokens", {"principal": "user:ann"})).json
            path, proof = f"/v1/tokens/{made['token_id']}", {"authorization": f"Bearer {made['token']}"}

            async def stale_seconds() -> float:
                text = (await ops.call("GET", "/metrics")).body.decode()
                families = {each.name: each for each in text_string_to_metric_families(text)}
                return float(families["fairlead_security_stale_seconds"].samples[0].value)

            async def is_stale() -> bool:
                return await stale_seconds() > 4

            before = await calls.call("GET", "/v1/whoami", headers=proof)
            member.pause()
            await until_true(is_stale)
            stale = await stale_seconds()
            during = await calls.call("GET", "/v1/whoami", headers=proof)
            kept = await calls.call("DELETE", path)
            member.resume()

            async def is_revoked() -> bool:
                return (await calls.call("DELETE", path)).status in (200, 404)

            await until_true(is_revoked)
            after = await calls.call("GET", "/v1/whoami", headers=proof)

    statuses = {"before": before.status, "during": during.status, "after_revocation": after.status}
    record("without coordination", {"stale_seconds": round(stale, 1), "statuses": statuses})

    assert (before.status, during.status, after.status) == (200, 200, 401)
    assert (kept.status, kept.code) == (503, "coordination_unavailable")
