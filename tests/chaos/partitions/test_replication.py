"""Kafka's replication_test, replication_replica_failure_test and round_trip_fault_test, judged by the checker."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos_cluster import ETCD, LAG_MS, LEASE_SECONDS
from chaos_faults import FAULTS, both_ways, controller, follower, leader
from chaos_run import TOPIC, ChaosRun, Producers, assert_good, chaos_run
from links import CLIENTS

MODES = ("isr", "quorum")
ROLES = {"leader": leader, "controller": controller}
pytestmark = pytest.mark.etcd


@pytest.mark.scenario
@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("mode", MODES)
async def test_acknowledged_records_are_read_after_brokers_are_gone(
    tmp_path: Path, mode: str, role: str, how: str
) -> None:
    """Acknowledged records are read after a leader or the controller is killed or stopped and stays offline."""
    async with chaos_run(tmp_path) as run:
        await run.create_replicated_topic(mode)
        run.usual_load()
        await run.wait_for_acknowledgements(100)
        node = await ROLES[role](run, random.Random(1))
        assert node is not None
        await (run.cluster.kill(node) if how == "killed" else run.cluster.stop(node))
        await run.work(2 * LEASE_SECONDS)
        partitions = await run.cluster.wait_for_partitions(
            TOPIC, lambda each: each.leader not in {None, node.number}
        )
        assert all(node.number not in each.isr for each in partitions)
        await run.wait_for_acknowledgements(100)
        assert_good(run, await run.finish())


@pytest.mark.scenario
@pytest.mark.parametrize("producers", Producers)
@pytest.mark.parametrize("fault", ["kill-leader", "restart-leader", "kill-controller", "kill-all"])
@pytest.mark.parametrize("mode", MODES)
async def test_acknowledged_records_are_read_while_brokers_bounce(
    tmp_path: Path, mode: str, fault: str, producers: Producers
) -> None:
    """Acknowledged records are read while the broker in a given role is repeatedly killed or stopped, and restarted."""
    async with chaos_run(tmp_path, producers=producers) as run:
        await run.create_replicated_topic(mode)
        run.usual_load()
        for seed in range(3):
            await run.wait_for_acknowledgements(100)
            assert await FAULTS[fault](run, random.Random(seed))
        assert_good(run, await run.finish())


@pytest.mark.scenario
@pytest.mark.parametrize("mode", MODES)
async def test_a_rolling_restart_loses_nothing(tmp_path: Path, mode: str) -> None:
    """Every acknowledged record is stored after a rolling restart, with all replicas in sync after each step."""
    async with chaos_run(tmp_path) as run:
        await run.create_replicated_topic(mode)
        run.usual_load()
        await run.wait_for_acknowledgements(100)
        assert await FAULTS["roll"](run, random.Random(1))
        assert_good(run, await run.finish())


async def test_a_follower_that_is_cut_off_leaves_the_in_sync_replicas(tmp_path: Path) -> None:
    """A follower that is cut off leaves the ISR after the lag time and joins again, while other replicas continue."""
    async with chaos_run(tmp_path, partitions=1) as run:
        await run.create_topic(min_insync_replicas=2)
        run.usual_load()
        await run.wait_for_acknowledgements(100)
        node = await follower(run, random.Random(1))
        assert node is not None
        others = [each.name for each in run.cluster.nodes if each is not node]
        run.cluster.links.block(both_ways(node.name, others))
        began = run.history.now
        await run.cluster.wait_for_partitions(TOPIC, lambda each: node.number not in each.isr)
        assert run.history.now - began < 3 * LAG_MS / 1000, "a follower that is cut off stays in sync"
        await run.wait_for_acknowledgements(100)
        run.cluster.links.mend()
        await run.cluster.wait_for_partitions(TOPIC, lambda each: node.number in each.isr)
        assert_good(run, await run.finish())


async def test_a_paused_follower_delays_no_acknowledgement(tmp_path: Path) -> None:
    """With a write quorum, a paused follower stays a voter and delays no acknowledgement; then the leader is killed."""
    async with chaos_run(tmp_path, partitions=1) as run:
        await run.create_replicated_topic("quorum")
        run.usual_load()
        await run.wait_for_acknowledgements(100)
        node = await follower(run, random.Random(1))
        assert node is not None
        run.cluster.pause(node)
        began = run.history.now
        await run.wait_for_acknowledgements(100)
        took = run.history.now - began
        run.cluster.resume()
        await run.wait_for_acknowledgements(50)
        assert await FAULTS["kill-leader"](run, random.Random(1))
        await run.wait_for_acknowledgements(50)
        assert_good(run, await run.finish())

    assert took < LAG_MS / 1000, "acknowledgements waited for the paused follower"


async def _no_fault(run: ChaosRun) -> None:
    await run.work(1)


async def _a_broker_apart(run: ChaosRun) -> None:
    node = await leader(run, random.Random(1))
    assert node is not None
    others = [each.name for each in run.cluster.nodes if each is not node]
    run.cluster.links.block(both_ways(node.name, [*others, ETCD]))


async def _a_broker_that_stands_still(run: ChaosRun) -> None:
    node = await leader(run, random.Random(1))
    assert node is not None
    run.cluster.pause(node)


async def _clients_apart(run: ChaosRun) -> None:
    run.cluster.links.block(both_ways(CLIENTS, [each.name for each in run.cluster.nodes]))


async def _everything_slow(run: ChaosRun) -> None:
    run.cluster.links.delay_seconds = 0.1


@pytest.mark.scenario
@pytest.mark.parametrize(
    "fault",
    [_no_fault, _a_broker_apart, _a_broker_that_stands_still, _clients_apart, _everything_slow],
    ids=lambda fault: fault.__name__.strip("_"),
)
async def test_a_round_trip_works_after_a_fault(tmp_path: Path, fault: object) -> None:
    """Records are produced and read during and after a fault that lasts twice as long as the lease."""
    assert callable(fault)
    async with chaos_run(tmp_path, partitions=2) as run:
        await run.create_topic(min_insync_replicas=2)
        run.usual_load()
        await run.wait_for_acknowledgements(50)
        await fault(run)
        await run.work(2 * LEASE_SECONDS)
        run.cluster.links.mend()
        run.cluster.resume()
        await run.wait_for_acknowledgements(50)
        assert_good(run, await run.finish())
