"""A busy caller whose quota holds for all brokers of a cluster together (rule Q4, proof V14)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker_kit import JSON, Calls
from overload_kit import WellBehavedClient, now, one_batch, pause, record
from secured_processes import Processes, processes

pytestmark = [
    pytest.mark.serial, pytest.mark.prove, pytest.mark.etcd, pytest.mark.scenario, pytest.mark.timeout(900),
]  # fmt: skip

LIMIT = 1_000_000
"""Bytes that the busy caller may produce per second."""
BATCH_BYTES = 50_000
TIMES = 10
"""Offered load of the busy caller, as a multiple of its limit."""
SETTLE_SECONDS = 15.0
"""Time until the brokers have learned the use of the others and have compensated the first excess."""
LOSS_SECONDS = 10.0
"""Time from the loss of the controller after which brokers admit at most the limit."""
REPLICAS = 3


@dataclass
class Offered:
    """Load of the busy caller: the same batch through some brokers in turn, whatever the answers are."""

    brokers: Sequence[Calls]
    partitions: int
    batch: bytes = field(default_factory=lambda: one_batch(BATCH_BYTES, 1))
    admitted: list[float] = field(default_factory=list)
    """Time of each answer to an admitted batch."""
    refused: int = 0

    async def run(self, seconds: float) -> None:
        """Offer a multiple of the limit for a time."""
        begun = now()
        async with asyncio.TaskGroup() as tasks:
            for number in itertools.count():
                if (passed := now() - begun) > seconds:
                    return
                tasks.create_task(self._send(number))
                await pause(max(0.0, (number + 1) * len(self.batch) / (LIMIT * TIMES) - passed))

    async def _send(self, number: int) -> None:
        through = self.brokers[number % len(self.brokers)]
        answer = await through.send("busy", self.batch, number % self.partitions)
        if answer.status == 200:
            self.admitted.append(now())
        else:
            self.refused += answer.status == 429

    def share(self, begin: float, end: float) -> float:
        """Return the admitted bytes between two times, as a share of the limit."""
        count = sum(begin <= at < end for at in self.admitted)
        return round(count * len(self.batch) / (end - begin) / LIMIT, 3)


@dataclass
class Tenants:
    """A cluster with a quota for one caller."""

    cluster: Processes
    admin: Calls
    busy: list[Calls]
    """Clients of the busy caller, one for each broker."""
    calm: WellBehavedClient
    """Client of another caller."""


@asynccontextmanager
async def tenants(folder: Path, brokers: int) -> AsyncIterator[Tenants]:
    """Yield a cluster in `enforce` mode with a topic for each of two callers."""
    file = folder / "admin.token"
    settings = {"security": "enforce", "admin_token_file": str(file)}
    async with (
        processes(folder, "http", "http", brokers=brokers, **settings) as cluster,
        AsyncExitStack() as stack,
    ):
        urls = [node.process.url for node in cluster.nodes]
        admin = await stack.enter_async_context(Calls(urls[0], token=file.read_text().strip()))
        tokens = {}
        for name, partitions in (("busy", brokers), ("calm", 1)):
            made = await admin.post("/v1/tokens", {"principal": f"user:{name}"})
            tokens[name] = made.json["token"]
            acl = {"principal": f"user:{name}", "operations": ["all"], "kind": "topic", "pattern": name}
            assert (await admin.post("/v1/acls", acl)).status == 201
            topic = {"name": name, "partitions": partitions, "replication_factor": min(brokers, REPLICAS)}
            assert (await admin.post("/v1/topics", topic)).status == 201
        quota = f'{{"each": {{"produce_bytes_per_second": {LIMIT}}}}}'.encode()
        assert (await admin.call("PUT", "/v1/quotas/user%3Abusy", quota, JSON)).status == 200
        clients = [Calls(url, token=tokens["busy"]) for url in urls]
        calm = Calls(urls[-1], token=tokens["calm"])
        for client in (*clients, calm):
            await stack.enter_async_context(client)
        yield Tenants(cluster, admin, clients, WellBehavedClient(calm, "calm"))


@pytest.mark.parametrize("brokers", [1, 3, 12])
async def test_a_tenant_is_kept_at_its_limit_by_all_brokers(full: bool, tmp_path: Path, brokers: int) -> None:
    """A caller that offers ten times its limit, through one broker or through all, gets its limit to within a tenth.

    Another caller has no failed request.
    """
    seconds = 30.0 if full else 15.0
    figures = {}
    async with tenants(tmp_path, brokers) as found:
        quiet = await found.calm.run(seconds / 3)
        for through in (found.busy[:1], found.busy)[: min(brokers, 2)]:
            offered, begun = Offered(through, brokers), now()
            _, beside = await asyncio.gather(
                offered.run(SETTLE_SECONDS + seconds), found.calm.run(SETTLE_SECONDS + seconds)
            )
            figures[f"through {len(through)}"] = {
                "admitted_share_of_limit": offered.share(
                    begun + SETTLE_SECONDS, begun + SETTLE_SECONDS + seconds
                ),
                "refused": offered.refused,
                "beside_p99_ms": beside.p99_ms,
                "failures": beside.failures,
            }
    record(f"tenant over its quota, {brokers} brokers", {"quiet_p99_ms": quiet.p99_ms, **figures})

    for name, each in figures.items():
        assert each["refused"], name
        assert each["failures"] == 0, name
        assert each["admitted_share_of_limit"] == pytest.approx(1.0, abs=0.1), (name, figures)


async def test_a_killed_controller_admits_no_more_than_the_limit(full: bool, tmp_path: Path) -> None:
    """From ten seconds after a kill of the controller, the other brokers together admit at most the limit."""
    seconds = 30.0 if full else 15.0
    async with tenants(tmp_path, 3) as found:
        nodes = found.cluster.nodes
        controller = (await found.admin.call("GET", "/v1/cluster")).json["controller"]
        left = [each for each, node in zip(found.busy, nodes, strict=True) if node.number != controller]
        offered = Offered(left, 3)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(offered.run(SETTLE_SECONDS + LOSS_SECONDS + seconds))
            await pause(SETTLE_SECONDS)
            before = len(offered.admitted)
            await asyncio.to_thread(nodes[controller].process.kill)
            begin = now() + LOSS_SECONDS
        share = offered.share(begin, begin + seconds)
    record("tenant over its quota, controller killed", {"admitted_share_of_limit": share})

    assert before
    assert share <= 1.1
