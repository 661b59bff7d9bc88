"""Runs in which a group reads the topic: members of this process, members that can be killed, and the final check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from chaos_cluster import Node
from chaos_run import PARTITIONS, TOPIC, ChaosRun, assert_good, chaos_run
from group_clients import GROUP, GroupReader
from group_watch import Place, assert_consumed_by, is_settled, owned, places_of, wait_for_group, wait_for_lag
from member_process import MemberProcess
from producing_clients import SdkProducer

LONG: Final[dict[str, Any]] = {"session_timeout": "30s"}
"""Session timeout longer than any fault, so that no member is wrongly removed and no partition moves."""


@asynccontextmanager
async def group_run(folder: Path, partitions: int = PARTITIONS) -> AsyncIterator[ChaosRun]:
    """Run a cluster with the topic and a producer."""
    async with chaos_run(folder, partitions=partitions, settings={"reader": "subscribe"}) as run:
        await run.create_topic(min_insync_replicas=2)
        run.start(SdkProducer(run.cluster, run.history, TOPIC, range(run.partitions), idempotent=True))
        await run.wait_for_acknowledgements(50)
        yield run


def start_members(run: ChaosRun, count: int, **more: Any) -> list[GroupReader]:
    """Start `count` members in this process."""
    readers = [GroupReader(run.cluster, run.history, TOPIC, **more) for _ in range(count)]
    run.start(*readers)
    return readers


@asynccontextmanager
async def member_processes(
    run: ChaosRun, folder: Path, count: int, **more: Any
) -> AsyncIterator[list[MemberProcess]]:
    """Yield members that can be killed, and stop all of them afterwards."""
    async with AsyncExitStack() as stack:
        members = []
        for _ in range(count):
            member = MemberProcess(folder, run.cluster.urls, run.history, TOPIC, more=more)
            stack.push_async_callback(member.kill)
            member.start()
            members.append(member)
        yield members


async def settled(run: ChaosRun, members: int) -> int:
    """Wait until `members` members share all partitions; return the group epoch."""
    found = await wait_for_group(run.cluster, GROUP, is_settled(members, places_of(TOPIC, run.partitions)))
    return found.epoch


async def shares(run: ChaosRun) -> dict[str, set[Place]]:
    """Return the partitions of each member, by member id."""
    description = await wait_for_group(run.cluster, GROUP, lambda _: True)
    return {member.member_id: set(owned(member)) for member in description.members}


async def named_shares(run: ChaosRun) -> dict[str | None, set[Place]]:
    """Return the partitions of each static member, by instance id."""
    description = await wait_for_group(run.cluster, GROUP, lambda _: True)
    return {member.instance_id: set(owned(member)) for member in description.members}


async def coordinator(run: ChaosRun) -> Node:
    """Return the broker that coordinates the group."""
    description = await wait_for_group(run.cluster, GROUP, lambda _: True)
    return run.cluster.node(description.coordinator)


async def until(run: ChaosRun, check: Callable[[], bool]) -> None:
    """Wait for a condition in this process; raise `TimeoutError` if it is not met in time."""
    async with asyncio.timeout(60):
        while not check():
            await run.work(0.1)


async def finish(run: ChaosRun, *members: MemberProcess, unheard: bool = False) -> int:
    """Heal all faults, end the load, let the group read all records, judge the history; return the number of repeats.

    `unheard`: a member may have been cut off for longer than its session.
    """
    await run.cluster.heal()
    await run.wait_for_acknowledgements(50)
    # Producers stop first, because a burst that is stored after the lag has reached zero would not be read.
    await run.stop_clients(SdkProducer)
    await wait_for_lag(run.cluster, GROUP, places_of(TOPIC, run.partitions))
    for member in members:
        await member.stop()
    await run.stop_clients()
    for member in members:
        member.merge_events()
    assert_good(run, await run.finish())
    return assert_consumed_by(run.history.events, GROUP, unheard=unheard)
