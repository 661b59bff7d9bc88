"""A busy caller whose quota holds for all brokers of a cluster together (rule Q4, proof V14)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import pytest

from broker_kit import JSON, Calls
from figures import record
from overload_kit import Latencies, WellBehavedClient, now, pause
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
"""Time until new brokers are at rest, or have learned the use of the others and have compensated the first excess."""
LOSS_SECONDS = 10.0
"""Time from the loss of the controller after which brokers admit at most the limit."""
LOADS = (0, 1, TIMES)
"""Loads that are compared, as multiples of the limit: none, the load that the quota allows, and the load above it."""
LATER_MAX = 0.2
"""Increase of the 99th percentile of another caller's latency by the load above the limit, as a share of the percentile
beside the load that the quota allows. The median of the slices above the limit is compared with the upper quartile of
the slices at the limit (decision 0713).
"""
SLICE_SECONDS = 5.0
SLICE_ROUNDS = 8
"""Number of slices of each load."""
CHANGE_SECONDS = 0.5
"""Time between two slices, in which requests of the previous slice end."""
INTERVAL_SECONDS = 0.01
"""Interval between two requests of another caller, short enough for a percentile of each slice."""
ANSWER_SECONDS = 60.0
REPLICAS = 3
PROGRAM = Path(__file__).with_name("busy_tenant.py")


class Offered:
    """Load of the busy caller from a separate process, so that it does not delay the other caller of a test."""

    def __init__(self, urls: Sequence[str], token: str, partitions: int) -> None:
        """Start a program that can offer a multiple of the limit, through some brokers in turn."""
        command = [sys.executable, str(PROGRAM), str(partitions), str(BATCH_BYTES), *urls]
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path, "TOKEN": token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.refused = 0
        self._sent, self._admitted = list[float](), list[float]()
        self._batch_bytes = 0

    def set(self, times: int) -> None:
        """Offer a multiple of the limit from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{times * LIMIT}\n")
        self._process.stdin.flush()

    async def end(self) -> None:
        """Stop the load, and take its counts."""
        printed, _ = await asyncio.to_thread(self._process.communicate, "", ANSWER_SECONDS)
        counts = json.loads(printed)
        self.refused, self._sent, self._admitted = counts["refused"], counts["sent"], counts["admitted"]
        self._batch_bytes = counts["batch_bytes"]

    def kill(self) -> None:
        """End the process in any case."""
        self._process.kill()
        self._process.communicate()

    def shares(self, begin: float, end: float) -> dict[str, float]:
        """Return the offered and the admitted bytes between two times, as shares of the limit."""
        counts = [sum(begin <= at < end for at in times) for times in (self._sent, self._admitted)]
        offered, admitted = (count * self._batch_bytes / (end - begin) / LIMIT for count in counts)
        return {"offered_share_of_limit": round(offered, 1), "admitted_share_of_limit": round(admitted, 3)}


@dataclass
class Tenants:
    """A cluster with a quota for one caller."""

    cluster: Processes
    admin: Calls
    token: str
    """Token of the busy caller."""
    calm: WellBehavedClient
    """Client of another caller."""

    @contextmanager
    def offered(self, urls: Sequence[str]) -> Iterator[Offered]:
        """Yield the load of the busy caller through some brokers, with a partition for each broker of the cluster."""
        offered = Offered(urls, self.token, len(self.cluster.nodes))
        try:
            yield offered
        finally:
            offered.kill()


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
        calm = await stack.enter_async_context(Calls(urls[-1], token=tokens["calm"]))
        yield Tenants(cluster, admin, tokens["busy"], WellBehavedClient(calm, "calm", INTERVAL_SECONDS))


async def slices(calm: WellBehavedClient, offered: Offered, rounds: int) -> dict[int, list[Latencies]]:
    """Return the latencies of another caller in slices of different loads, which take turns, by their load.

    The load is a multiple of the limit.
    """
    found: dict[int, list[Latencies]] = {times: [] for times in LOADS}
    for number in range(rounds):
        # The order is reversed in every second round, so that a steady change of the machine affects all loads alike.
        for times in LOADS if number % 2 else LOADS[::-1]:
            offered.set(times)
            await calm.run(CHANGE_SECONDS)
            found[times].append(await calm.run(SLICE_SECONDS))
    return found


@pytest.mark.parametrize("brokers", [1, 3, 12])
async def test_a_tenant_is_kept_at_its_limit_by_all_brokers(full: bool, tmp_path: Path, brokers: int) -> None:
    """A caller that offers ten times its limit, through one broker or through all, gets its limit to within a tenth.

    Another caller has no failed request. In the full run, which has enough slices for a comparison, the load above the
    limit raises the 99th percentile of that caller's latency by at most a fifth, apart from the spread of the slices.
    """
    seconds, rounds = 30.0, SLICE_ROUNDS if full else 2
    figures = {}
    async with tenants(tmp_path, brokers) as found:
        urls = found.cluster.bootstrap("http")
        await found.calm.run(SETTLE_SECONDS)
        for through in (urls[:1], urls)[: min(brokers, 2)]:
            with found.offered(through) as offered:
                offered.set(TIMES)
                settling = await found.calm.run(SETTLE_SECONDS)
                begun = now()
                beside = await found.calm.run(seconds)
                ended = now()
                parts = await slices(found.calm, offered, rounds)
                await offered.end()
            quiet, at_limit, above = ([each.p99_ms for each in parts[times]] for times in LOADS)
            measured = (settling, beside, *(each for part in parts.values() for each in part))
            figures[f"through {len(through)}"] = {
                "brokers": brokers,
                "through": len(through),
                **offered.shares(begun, ended),
                "refused": offered.refused,
                "quiet_p99_ms": round(median(quiet), 2),
                "at_limit_p99_ms": round(median(at_limit), 2),
                "at_limit_upper_p99_ms": round(quantiles(at_limit)[-1], 2),
                "beside_p99_ms": round(median(above), 2),
                "failures": sum(each.failures for each in measured),
            }
    record(f"tenant over its quota, {brokers} brokers", figures)

    for name, each in figures.items():
        assert each["refused"], name
        assert each["failures"] == 0, name
        assert each["admitted_share_of_limit"] == pytest.approx(1.0, abs=0.1), (name, figures)
        p99_ms_max = (1 + LATER_MAX) * each["at_limit_upper_p99_ms"]
        assert not full or each["beside_p99_ms"] <= p99_ms_max, (name, figures)


async def test_a_killed_controller_admits_no_more_than_the_limit(full: bool, tmp_path: Path) -> None:
    """From ten seconds after a kill of the controller, the other brokers together admit at most the limit."""
    seconds = 30.0 if full else 15.0
    async with tenants(tmp_path, 3) as found:
        nodes = found.cluster.nodes
        controller = (await found.admin.call("GET", "/v1/cluster")).json["controller"]
        urls = found.cluster.bootstrap("http")
        left = [url for url, node in zip(urls, nodes, strict=True) if node.number != controller]
        with found.offered(left) as offered:
            offered.set(TIMES)
            await pause(SETTLE_SECONDS)
            await asyncio.to_thread(nodes[controller].process.kill)
            killed = now()
            await pause(LOSS_SECONDS + seconds)
            ended = now()
            await offered.end()
        before = offered.shares(killed - SETTLE_SECONDS, killed)
        after = offered.shares(killed + LOSS_SECONDS, ended)
    figures = {"brokers": len(urls), "through": len(left), "seconds_after_kill_of_controller": LOSS_SECONDS}
    record("tenant over its quota, controller killed", figures | after)

    assert before["admitted_share_of_limit"] > 0
    # A batch that is admitted with the last bytes of the quota is 0.3 % of the quota of this time.
    assert after["admitted_share_of_limit"] <= 1.01
