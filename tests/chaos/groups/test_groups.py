"""Kafka's client/consumer_test, OffsetValidation: a group keeps its position while members stop, fail and move."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from chaos_cluster import LEASE_SECONDS, call, http_client
from chaos_faults import FAULTS, leader
from chaos_run import TOPIC, ChaosRun
from group_clients import GROUP
from group_runs import (
    LONG,
    coordinator,
    finish,
    group_run,
    member_processes,
    named_shares,
    settled,
    shares,
    start_members,
    until,
)
from group_watch import deliveries, wait_for_group
from member_process import MemberProcess

pytestmark = pytest.mark.etcd


@pytest.mark.scenario
async def test_brokers_bounce_one_after_the_other_and_nothing_moves(tmp_path: Path) -> None:
    """Members keep their partitions during a rolling restart, which moves leaders and the coordinator."""
    async with group_run(tmp_path) as run:
        readers = start_members(run, 2, **LONG)
        epoch = await settled(run, 2)
        came = [reader.assigned for reader in readers]
        assert await FAULTS["roll"](run, random.Random(1))
        assert await settled(run, 2) == epoch
        assert [reader.assigned for reader in readers] == came
        assert await finish(run) == 0, "no partition moved, so that no record may be delivered twice"


@pytest.mark.scenario
@pytest.mark.parametrize("which", ["leader", "coordinator"])
async def test_a_broker_fails_and_nothing_moves(tmp_path: Path, which: str) -> None:
    """Members keep their partitions and continue when a broker is stopped for longer than its lease."""
    async with group_run(tmp_path) as run:
        readers = start_members(run, 2, **LONG)
        epoch = await settled(run, 2)
        came = [reader.assigned for reader in readers]
        node = await (coordinator(run) if which == "coordinator" else leader(run, random.Random(1)))
        assert node is not None
        await run.cluster.kill(node)
        await run.work(2 * LEASE_SECONDS)
        assert await settled(run, 2) == epoch
        assert [reader.assigned for reader in readers] == came
        assert (await coordinator(run)).number != node.number
        assert await finish(run) == 0, "no partition moved, so that no record may be delivered twice"


@pytest.mark.scenario
@pytest.mark.parametrize("together", [True, False], ids=["all", "rolling"])
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_members_bounce(tmp_path: Path, how: str, together: bool) -> None:
    """Members that restart together or one by one, gracefully or killed, share all partitions again."""
    async with group_run(tmp_path) as run, member_processes(run, tmp_path, 3) as members:
        await settled(run, 3)

        async def end(member: MemberProcess) -> None:
            await (member.kill() if how == "killed" else member.stop())

        for group in [members] * 2 if together else [[member] for member in members]:
            await asyncio.gather(*(end(member) for member in group))
            for member in group:
                member.start()
            await run.wait_for_acknowledgements(50)
            await settled(run, 3)
        await finish(run, *members)


@pytest.mark.scenario
async def test_a_member_fails(tmp_path: Path) -> None:
    """When a killed member's session expires, its partitions move to other members, and no other partition moves."""
    async with group_run(tmp_path) as run, member_processes(run, tmp_path, 1) as (victim,):
        readers = start_members(run, 2)
        await settled(run, 3)
        await run.wait_for_acknowledgements(50)
        before = await shares(run)
        came = sum(reader.assigned for reader in readers)
        await victim.kill()
        await settled(run, 2)
        after = await shares(run)
        (gone,) = before.keys() - after.keys()
        assert all(before[member] <= share for member, share in after.items()), (
            "a partition of a live member moved"
        )
        await run.wait_for_acknowledgements(50)
        assert sum(reader.assigned for reader in readers) - came == len(before[gone])
        await finish(run, victim)


@pytest.mark.scenario
async def test_a_member_that_was_paused_joins_again(tmp_path: Path) -> None:
    """A member whose session ended during a pause commits nothing for moved partitions and joins again."""
    async with group_run(tmp_path) as run, member_processes(run, tmp_path, 1) as (sleeper,):
        start_members(run, 2)
        await settled(run, 3)
        for _ in range(2):
            sleeper.pause()
            await settled(run, 2)
            await run.wait_for_acknowledgements(50)
            sleeper.resume()
            await settled(run, 3)
            await run.wait_for_acknowledgements(50)
        await finish(run, sleeper, unheard=True)


@pytest.mark.scenario
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_static_member_bounces_and_nothing_moves(tmp_path: Path, how: str) -> None:
    """A static member that returns within its session gets its partitions back, and other members keep theirs."""
    async with (
        group_run(tmp_path) as run,
        member_processes(run, tmp_path, 1, instance_id="one", **LONG) as (bounced,),
    ):
        readers = start_members(run, 1, instance_id="two", **LONG) + start_members(
            run, 1, instance_id="three", **LONG
        )
        await settled(run, 3)
        places = await named_shares(run)
        came = [reader.assigned for reader in readers]
        for _ in range(2):
            await (bounced.kill() if how == "killed" else bounced.stop())
            await run.wait_for_acknowledgements(50)
            bounced.start()
            await until(run, lambda: bounced.has_assigned)
            await settled(run, 3)
            assert await named_shares(run) == places
        assert [reader.assigned for reader in readers] == came, "a partition of another member moved"
        await finish(run, bounced)


@pytest.mark.scenario
async def test_a_static_member_keeps_its_place_while_the_coordinator_moves(tmp_path: Path) -> None:
    """A static member that is offline keeps its partitions when its coordinator is killed."""
    async with (
        group_run(tmp_path) as run,
        member_processes(run, tmp_path, 1, instance_id="one", **LONG) as (away,),
    ):
        (reader,) = start_members(run, 1, instance_id="two", **LONG)
        await settled(run, 2)
        places, came = await named_shares(run), reader.assigned
        await away.stop()
        before = await coordinator(run)
        await run.cluster.kill(before)
        await wait_for_group(run.cluster, GROUP, lambda found: found.coordinator != before.number)
        away.start()
        await settled(run, 2)
        assert await named_shares(run) == places
        assert reader.assigned == came, "a partition of the other member moved"
        await finish(run, away)


@pytest.mark.scenario
async def test_of_members_with_one_static_name_one_is_left(tmp_path: Path) -> None:
    """Members with the instance id of a live member are refused; one of them joins when the live member has left."""
    async with group_run(tmp_path) as run:
        (first,) = start_members(run, 1, instance_id="same", **LONG)
        await settled(run, 1)
        before = (await shares(run)).keys()
        others = start_members(run, 3, instance_id="same", **LONG)
        await run.work(2 * LEASE_SECONDS)
        await run.wait_for_acknowledgements(50)
        assert (await shares(run)).keys() == before, (
            "the name went from one to the other while both were heard"
        )
        assert await _join_as(run, "same") == "instance_fenced"
        assert [other.assigned for other in others] == [0, 0, 0]
        first.stopping.set()
        await until(run, lambda: any(other.assigned for other in others))
        await settled(run, 1)
        assert not (await shares(run)).keys() & before
        await finish(run)


async def _join_as(run: ChaosRun, name: str) -> str:
    """Try to join by plain HTTP; return the code of the refusal."""
    body = {"member_epoch": 0, "topics": [TOPIC], "instance_id": name}
    async with http_client() as client:
        answer = await call(client, "PUT", f"{run.cluster.urls[0]}/v1/groups/{GROUP}/members/late", body)
    return str(answer.json.get("code"))


@pytest.mark.scenario
async def test_members_join_and_leave_one_by_one_and_all_is_read(tmp_path: Path) -> None:
    """Four members join one by one and leave in the same order; together they read every record."""
    async with group_run(tmp_path) as run:
        readers = []
        for count in range(1, 5):
            readers += start_members(run, 1)
            await settled(run, count)
            await _each_is_read(run)
        for left in (3, 2, 1):
            readers[3 - left].stopping.set()
            await settled(run, left)
            await _each_is_read(run)
        await finish(run)


async def _each_is_read(run: ChaosRun) -> None:
    """Wait until a member has received new records from every partition."""
    told = len(run.history.events)

    def check() -> bool:
        return len(deliveries(run.history.events[told:], GROUP)) == run.partitions

    await until(run, check)
