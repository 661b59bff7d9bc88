"""A partition's producer state survives its leader: repeats and their acks, idempotency keys, named producers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from broker_kit import sequenced
from chaos_cluster import Answer, ChaosCluster, call, http_client
from chaos_faults import both_ways
from chaos_run import TOPIC, ChaosRun, chaos_run
from fairlead_api.bodies.metadata import Metadata
from producing_clients import BATCHES
from reading_clients import fetch

if TYPE_CHECKING:
    from pyreqwest.client import Client

pytestmark = pytest.mark.etcd
RECORDS = f"/v1/topics/{TOPIC}/partitions/0/records"
RETRIED = {421, 503, 504}
KNOWN_SECONDS = 60.0


async def _send(
    client: Client, url: str, batch: bytes, *, acks: str = "all", timeout_ms: int = 10_000
) -> Answer:
    path = f"{url}{RECORDS}?acks={acks}&timeout_ms={timeout_ms}"
    return await call(client, "POST", path, batch, headers={"content-type": BATCHES}, seconds=15.0)


async def _send_keyed(client: Client, url: str, value: str) -> Answer:
    headers = {"idempotency-key": "order-17"}
    return await call(client, "POST", f"{url}{RECORDS}", [{"value": value}], headers=headers, seconds=15.0)


async def _name(client: Client, cluster: ChaosCluster, number: int) -> dict[str, int]:
    node = cluster.alive()[number]
    answer = await call(client, "POST", f"{node.url}/v1/producers", {"name": "spark-1"})
    assert answer.status == 200, answer.body
    return {
        "producer_id": int(answer.json["producer_id"]),
        "epoch": int(answer.json["producer_epoch"]),
    }


async def _kill_leader(run: ChaosRun) -> None:
    """Kill the leader and wait until every other broker knows that another replica leads."""
    leader = (await run.partition()).leader
    assert leader is not None
    await run.cluster.kill(run.cluster.node(leader))
    await run.cluster.wait_for_partitions(TOPIC, lambda each: each.leader not in {None, leader})
    async with http_client() as client, asyncio.timeout(KNOWN_SECONDS):
        for node in run.cluster.alive():
            while await _known_leader(client, node.url) in {None, leader}:
                await run.work(0.1)


async def _known_leader(client: Client, url: str) -> int | None:
    """Return the leader that a broker names; None if it names no leader or refuses the request."""
    answer = await call(client, "GET", f"{url}/v1/metadata?topics={TOPIC}")
    if answer.status != 200:
        return None
    [topic] = msgspec.json.decode(answer.body, type=Metadata).topics
    return topic.partitions[0].leader


async def test_stored_batches_are_not_stored_again_by_the_next_leader(tmp_path: Path) -> None:
    """Repeats of stored batches are answered with their offsets by the next leader, and a named producer is fenced."""
    async with chaos_run(tmp_path, partitions=1) as run, http_client() as client:
        await run.create_topic(min_insync_replicas=2)
        old = await _name(client, run.cluster, 0)
        batches = [sequenced(number, [b"%d" % number], **old) for number in range(3)]
        urls = run.cluster.urls
        first = [await _send(client, url, batch) for url, batch in zip(urls, batches, strict=True)]
        keyed = await _send_keyed(client, urls[0], "3")
        assert [each.json["base_offset"] for each in (*first, keyed)] == [0, 1, 2, 3]
        await _kill_leader(run)

        for node in run.cluster.alive():
            for number, batch in enumerate(batches):
                again = await _send(client, node.url, batch)
                assert (again.status, again.json["base_offset"], again.json["duplicate"]) == (
                    200,
                    number,
                    True,
                )
            again = await _send_keyed(client, node.url, "3")
            assert (again.status, again.json["base_offset"], again.json["duplicate"]) == (200, 3, True)
            other = await _send_keyed(client, node.url, "another body")
            assert other.json["code"] == "idempotency_key_reused", other.body
        new = await _name(client, run.cluster, 1)
        assert new == {"producer_id": old["producer_id"], "epoch": old["epoch"] + 1}
        taken = await _send(client, run.cluster.alive()[0].url, sequenced(0, [b"4"], **new))
        assert taken.json["base_offset"] == 4, taken.body
        for node in run.cluster.alive():
            refused = await _send(client, node.url, sequenced(3, [b"fenced"], **old))
            assert refused.json["code"] == "producer_fenced", refused.body
        await run.cluster.heal()
        assert await _values(run, client) == ["0", "1", "2", "3", "4"]


@pytest.mark.scenario
async def test_a_repeat_is_acknowledged_by_its_own_acks(tmp_path: Path) -> None:
    """A repeat with acks=all waits for the followers, even if the batch was acknowledged earlier with acks=1."""
    async with chaos_run(tmp_path, partitions=1) as run, http_client() as client:
        await run.create_topic(min_insync_replicas=2)
        leader = (await run.partition()).leader
        assert leader is not None
        node = run.cluster.node(leader)
        first, second = (sequenced(number, [b"%d" % number]) for number in range(2))
        assert (await _send(client, node.url, first)).status == 200
        others = [each.name for each in run.cluster.nodes if each is not node]
        run.cluster.links.block(both_ways(node.name, others))
        alone = await _send(client, node.url, second, acks="1")
        assert (alone.status, alone.json["base_offset"]) == (200, 1)
        early = await _send(client, node.url, second, timeout_ms=1500)
        assert early.status in RETRIED, early.body
        run.cluster.links.mend()
        async with asyncio.timeout(60):
            while (late := await _send(client, node.url, second)).status in RETRIED:
                await run.work(0.2)
        assert (late.status, late.json["base_offset"], late.json["duplicate"]) == (200, 1, True)
        await _kill_leader(run)

        after = await _send(client, run.cluster.alive()[0].url, second)
        assert (after.status, after.json["base_offset"], after.json["duplicate"]) == (200, 1, True)
        assert await _values(run, client) == ["0", "1"]


async def _values(run: ChaosRun, client: Client) -> list[str]:
    got = await fetch(client, run.cluster.alive()[0].url, TOPIC, 0, 0)
    assert got is not None
    return [str(value) for _, value in got[0]]
