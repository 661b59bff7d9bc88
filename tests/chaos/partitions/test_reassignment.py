"""Kafka's reassign_partitions_test: partitions move under load, with and without restarts, and no record is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos_cluster import call, http_client
from chaos_faults import FAULTS
from chaos_run import TOPIC, ChaosRun, assert_good, chaos_run, post

pytestmark = pytest.mark.etcd


async def _move_all(run: ChaosRun) -> dict[int, list[int]]:
    """Begin to move every partition to the next brokers; return the target of each partition."""
    targets = {}
    size = len(run.cluster.nodes)
    for each in await run.cluster.partitions(TOPIC):
        targets[each.partition] = [(number + 1) % size for number in each.replicas]
        path = f"/v1/topics/{TOPIC}/partitions/{each.partition}:reassign"
        await post(run, path, {"replicas": targets[each.partition]})
    return targets


@pytest.mark.scenario
@pytest.mark.parametrize(
    "fault",
    [
        "kill-leader",
        pytest.param("nothing", marks=pytest.mark.scenario),
        pytest.param("restart-leader", marks=pytest.mark.scenario),
    ],
)
@pytest.mark.parametrize("config", [{}, {"replication_mode": "quorum"}], ids=["isr", "quorum"])
async def test_partitions_move_under_load(tmp_path: Path, config: dict[str, str], fault: str) -> None:
    """Every partition reaches its target brokers in sync, whether or not a broker restarts."""
    async with chaos_run(tmp_path) as run:
        await run.create_topic(replicas=2, **config)
        run.usual_load()
        await run.wait_for_acknowledgements(200)
        targets = await _move_all(run)
        assert await FAULTS[fault](run, random.Random(1))
        await run.cluster.wait_for_partitions(
            TOPIC,
            lambda each: set(each.replicas) == set(targets[each.partition]) == set(each.isr),
        )
        await run.wait_for_acknowledgements(100)
        assert_good(run, await run.finish())


@pytest.mark.scenario
async def test_a_cancelled_move_leaves_the_partition_where_it_was(tmp_path: Path) -> None:
    """A move to an offline broker cannot complete, and its cancellation leaves exactly the old replicas."""
    async with chaos_run(tmp_path, partitions=1) as run:
        await run.create_topic(replicas=2)
        run.usual_load()
        await run.wait_for_acknowledgements(100)
        before = (await run.partition()).replicas
        newcomer = next(node for node in run.cluster.nodes if node.number not in before)
        run.cluster.pause(newcomer)
        path = f"/v1/topics/{TOPIC}/partitions/0"
        await post(run, f"{path}:reassign", {"replicas": [before[0], newcomer.number]})
        async with http_client() as client:
            answer = await call(client, "DELETE", f"{run.cluster.node(before[0]).url}{path}/reassignment")
        assert answer.status < 300, answer.body
        await run.cluster.wait_for_partitions(TOPIC, lambda each: each.replicas == before)
        run.cluster.resume()
        assert_good(run, await run.finish())
