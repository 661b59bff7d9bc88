from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import pytest
import structlog

from etcd_cluster import EtcdCluster
from fairlead_operator.etcd_members import EtcdMembersClient
from fairlead_operator.plan.etcd_actions import EtcdPlan
from fairlead_operator.reconcile.etcd import EtcdStep
from render_kit import IMAGES, cluster_of

if TYPE_CHECKING:
    from fairlead_operator.ports import KubernetesApi


async def look_at(*endpoints: str, secret: str | None = None) -> EtcdPlan:
    """Observe the external etcd of a Cluster, without Kubernetes."""
    cluster = cluster_of(etcd={"external": {"endpoints": list(endpoints), "secretName": secret}})
    nowhere = cast("KubernetesApi", None)
    async with EtcdMembersClient(deadline_seconds=2.0) as client:
        step = EtcdStep(nowhere, client, url="", tls_url="", log=structlog.get_logger())
        look = await step.look(
            cluster, IMAGES, sets=[], pods=[], claims=[], refusals={}, now=datetime.now(UTC)
        )
    return look.plan


async def test_an_external_etcd_is_healthy_as_long_as_a_majority_is(three: EtcdCluster) -> None:
    """An external etcd is healthy with a majority of its endpoints; each endpoint has a row in the status."""
    leader = await three.leader()
    whole = await look_at(*three.urls)
    next(member for member in three.members if member is not leader).kill()
    reduced = await look_at(*three.urls)
    leader.kill()
    broken = await look_at(*three.urls)

    assert [row.role for row in whole.status.members].count("leader") == 1
    assert (whole.verdict.status, whole.status.ready) == ("True", 3)
    assert (reduced.verdict.status, reduced.status.ready) == ("True", 2)
    assert (broken.verdict.status, broken.verdict.reason) == ("Unknown", "Unreachable")
    assert leader.url in broken.verdict.message
    assert broken.actions == ()


@pytest.mark.parametrize(("scheme", "secret"), [("https", None), ("http", "credentials")])
async def test_what_needs_a_secret_is_not_asked(scheme: str, secret: str | None) -> None:
    """An etcd that needs TLS or credentials is reported as unknown, because the operator reads no Secret."""
    plan = await look_at(f"{scheme}://127.0.0.1:1", secret=secret)

    assert plan.status.ready == 0
    assert (plan.verdict.status, plan.verdict.reason) == ("Unknown", "External")
