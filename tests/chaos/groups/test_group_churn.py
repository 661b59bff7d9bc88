"""Members join and leave while coordinators and etcd are killed; no record is lost, no partition has two owners."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from chaos_cluster import LEASE_SECONDS
from chaos_faults import etcd_killed
from chaos_run import ChaosRun
from group_clients import GROUP, GroupReader
from group_runs import coordinator, finish, group_run, member_processes, settled, start_members
from group_watch import OwnershipWatch
from member_process import MemberProcess

pytestmark = pytest.mark.etcd
PARTITIONS: Final = 8
SIZES: Final = (2, 3, 4, 5, 6, 5, 4, 3, 2, 1)
SAMPLES_A_SECOND_MIN: Final = 1000 / 60


async def _kill_in_turn(run: ChaosRun, rng: random.Random, over: asyncio.Event) -> None:
    """Kill the coordinator and etcd in turn, each at least once, until the churn ends."""
    while not over.is_set() or len(run.faults) < 2:
        node = await coordinator(run)
        await run.cluster.kill(node)
        await run.work(rng.uniform(0.5, 2.0) * LEASE_SECONDS)
        await run.cluster.start(node)
        run.count("kill-coordinator")
        assert await etcd_killed(run, rng)
        run.count("kill-etcd")


async def _churn(
    run: ChaosRun, seconds: float, doomed: Sequence[MemberProcess], over: asyncio.Event
) -> list[GroupReader]:
    """Grow and shrink the group evenly over `seconds`; return the remaining members."""
    left = list(doomed)
    readers: list[GroupReader] = []
    try:
        for size in SIZES:
            await run.work(seconds / len(SIZES))
            while len(readers) + len(left) < size:
                readers += start_members(run, 1)
            if len(readers) + len(left) > size and left:
                await left.pop().kill()
            while len(readers) + len(left) > size:
                readers.pop(0).stopping.set()
    finally:
        over.set()
    return readers


@pytest.mark.scenario
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seconds", "seed"), [(8, 12), *(pytest.param(60, seed, marks=pytest.mark.scenario) for seed in (2, 3))]
)
async def test_churn_under_load(tmp_path: Path, seconds: float, seed: int) -> None:
    """While a group grows to six members and shrinks again, a record is repeated only after its partition has moved."""
    rng, over = random.Random(seed), asyncio.Event()
    async with group_run(tmp_path, PARTITIONS) as run, member_processes(run, tmp_path, 1) as doomed:
        watch = OwnershipWatch(run.cluster, GROUP)
        run.start(watch)
        await settled(run, 1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_kill_in_turn(run, rng, over))
            left = tasks.create_task(_churn(run, seconds, doomed, over))
        await run.cluster.heal()
        await settled(run, len(left.result()))
        await finish(run, *doomed, unheard=True)

    assert watch.findings == []
    assert min(watch.described, watch.read) >= SAMPLES_A_SECOND_MIN * seconds / 2, (
        watch.described,
        watch.read,
    )
    assert watch.described + watch.read >= SAMPLES_A_SECOND_MIN * seconds, "too few samples to prove anything"
