"""Metrics on the ops listener: open, or for callers that may describe the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_kit import Calls
from cluster_kit import Cluster
from fairlead_broker.clock import SystemClock
from fairlead_broker.runtime import BrokerState
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Telemetry
from fairlead_broker.wiring.listeners import bind_listeners, start_ops
from security_kit import Secured

FREE = "127.0.0.1:0"


async def test_metrics_want_a_caller_that_may_describe_the_cluster(tmp_path: Path) -> None:
    """With `token`, metrics are refused without a token (401) and without the right (403); health checks stay open."""
    cluster, file = await Cluster.open(tmp_path), tmp_path / "admin.token"
    try:
        await cluster.start(1, security="enforce", admin_token_file=file, metrics_access="token")
        broker = cluster.brokers[1]
        async with Calls(str(broker.addresses.data)) as calls, Calls.http1(str(broker.addresses.ops)) as ops:
            secured = Secured(cluster, calls, file.read_text().strip())
            scraper = Secured(cluster, ops, secured.admin)
            ann = (await secured.token("user:ann"))["token"]
            statuses = [
                (await scraper.call("GET", "/metrics", token)).status for token in (None, "flt_x", ann)
            ]
            await secured.acl("user:ann", "describe", "cluster:*")
            allowed = await scraper.call("GET", "/metrics", ann)
            health = [(await scraper.call("GET", path)).status for path in ("/healthz", "/readyz")]
    finally:
        await cluster.close()

    assert statuses == [401, 401, 403]
    assert (allowed.status, b"fairlead_" in allowed.body) == (200, True)
    assert health == [200, 200]


async def test_metrics_wait_for_tokens_and_acls(tmp_path: Path) -> None:
    """With `token`, a broker that recovers answers 503, because it cannot decide about callers yet."""
    settings = BrokerSettings(
        data=tmp_path, listen=FREE, peer_listen=FREE, ops_listen=FREE, metrics_access="token"
    )
    parts = bind_listeners(settings.listeners, Telemetry(), SystemClock(), BrokerState(), {})
    await start_ops(parts)
    try:
        async with Calls.http1(str(parts.bound.addresses.ops)) as ops:
            statuses = [(await ops.call("GET", path)).status for path in ("/metrics", "/healthz")]
    finally:
        await parts.listeners.stop()

    assert statuses == [503, 200]


@pytest.mark.parametrize(
    ("security", "ops", "given", "by_token"),
    [
        ("open", "0.0.0.0:9522", None, False),
        ("observe", "0.0.0.0:9522", None, False),
        ("enforce", "127.0.0.1:9522", None, False),
        ("enforce", "0.0.0.0:9522", None, True),
        ("enforce", "0.0.0.0:9522", "open", False),
        ("open", "127.0.0.1:9522", "token", True),
    ],
)
def test_metrics_are_open_unless_a_closed_broker_shows_them_to_the_network(
    security: str, ops: str, given: str | None, by_token: bool
) -> None:
    """The default is `token` for an enforcing broker whose ops listener other machines reach."""
    settings = BrokerSettings.load(
        {"security": security, "superusers": "user:ann", "ops_listen": ops, "metrics_access": given}
    )

    assert settings.listeners.metrics_by_token is by_token
