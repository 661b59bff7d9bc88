"""Effects on a group when a member joins, when a member dies, and when the coordinator of the group dies.

`groups.py` calls this module. Each part runs its own three brokers and etcd. Times are measured with the monotonic
clock, which all processes on a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from failover import Condition, new_topic, percentiles, settled, until
from pairing import Outcome
from peers.brokers import HERE
from peers.clusters import FairleadCluster
from workloads.groups_workload import BUCKETS_A_SECOND
from workloads.plain_groups import PlainClient, PlainMember

from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead_api.bodies.group_answers import GroupDescription

GROUP = "bench"
BEFORE_SECONDS = 10.0
SETTLE_SECONDS = 3.0
PARTITIONS_A_MEMBER = 2
PARTITION_RECORDS = 40_000
BATCH_RECORDS = 8_000
PACE_SECONDS = 0.02
FEW_PARTITIONS = 6
COORDINATOR_SESSION_SECONDS = 60
RATIO_MIN = 0.9


@dataclass(slots=True)
class Crew:
    """Members in a separate process, which begin to read on a command from this process."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, cluster: FairleadCluster, topic: str, members: int, *more: str) -> Self:
        """Start the process, and return when it has loaded its code; its members have not joined yet."""
        command = [
            sys.executable,
            str(HERE / "workloads/groups_workload.py"),
            "members",
            "--url",
            cluster.bootstrap,
        ]
        command += ["--topic", topic, "--group", GROUP, "--members", str(members), *more]
        # Without a buffer, Python drops the rest of a large report that the pipe accepts only in part.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        assert process.stdout.readline(), "the members ended before they began"
        return cls(process)

    def go(self) -> float:
        """Signal the members to join; return the time of the signal."""
        assert self.process.stdin is not None
        at = time.monotonic()
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return at

    def stop(self) -> list[Counter[int]]:
        """Signal the members to leave; return the number of records that each member read in each tenth of a second."""
        output, _ = self.process.communicate("stop\n", timeout=120)
        document = json.loads(output)
        assert not document["failed"], document["failed"]
        return [Counter({int(at): n for at, n in buckets.items()}) for buckets in document["members"]]

    def kill(self) -> float:
        """Kill the process, so that its members cannot leave the group; return the time of the kill."""
        at = time.monotonic()
        self.process.kill()
        self.process.wait()
        return at


async def _stable(admin: Admin, members: int) -> GroupDescription:
    """Wait until the group has the given number of members, and all members have their assigned partitions."""
    found: list[GroupDescription] = []

    async def look() -> bool:
        """Fetch the state of the group, and return whether it is stable and has all members."""
        found[:] = [await admin.describe_group(GROUP)]
        return found[0].state == "stable" and len(found[0].members) == members

    await until(look, f"a stable group of {members}")
    return found[0]


def join(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Repeatedly add a member to the group while the other members read at full rate."""
    cluster = FairleadCluster.start(folder / "fairlead", lease_seconds=options.lease_seconds)
    try:
        partitions = PARTITIONS_A_MEMBER * (options.members + 1)
        asyncio.run(_replicated_once(cluster, "join", partitions))
        load = [sys.executable, str(HERE / "workloads/workload.py"), "produce", "--url", cluster.bootstrap]
        load += ["--topic", "join", "--partitions", str(partitions), "--batch-records", str(BATCH_RECORDS)]
        subprocess.run(
            [*load, "--records", str(partitions * PARTITION_RECORDS)], check=True, capture_output=True
        )
        return asyncio.run(_joins(cluster, options))
    finally:
        cluster.stop()


async def _replicated_once(cluster: FairleadCluster, name: str, partitions: int) -> None:
    """Create a topic with one replica, since only reading is measured."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(
            name, partitions=partitions, replication_factor=1, config={"durability": "replicated"}
        )
    await settled(cluster)


async def _joins(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    more = ("--records", str(PARTITION_RECORDS))
    shares = [
        options.members // options.processes + (index < options.members % options.processes)
        for index in range(options.processes)
    ]
    crews = [Crew.start(cluster, "join", share, *more) for share in shares]
    moves = []
    async with Admin(cluster.bootstrap) as admin:
        for crew in crews:
            crew.go()
        await _stable(admin, options.members)
        for _ in range(options.join_runs):
            late = await asyncio.to_thread(Crew.start, cluster, "join", 1, *more)
            await asyncio.sleep(SETTLE_SECONDS + BEFORE_SECONDS)
            began = late.go()
            await _stable(admin, options.members + 1)
            moves.append((began, time.monotonic()))
            await asyncio.sleep(SETTLE_SECONDS)
            await asyncio.to_thread(late.stop)
            await _stable(admin, options.members)
    read = sum((buckets for crew in crews for buckets in crew.stop()), Counter[int]())
    return _rates(read, moves, options)


def _rates(
    read: Mapping[int, int], moves: list[tuple[float, float]], options: argparse.Namespace
) -> dict[str, object]:
    """Compare the rates at which the other members read during each move and before the move."""
    runs = []
    for began, ended in moves:
        before = _rate(read, began - BEFORE_SECONDS, began)
        during = _rate(read, began, ended)
        # If a move is shorter than a second, the whole second that contains the move is measured.
        worst = min(
            _rate(read, at / BUCKETS_A_SECOND, at / BUCKETS_A_SECOND + 1)
            for at in range(int(began * BUCKETS_A_SECOND), int(ended * BUCKETS_A_SECOND) + 1)
        )
        runs.append(
            {
                "move_seconds": round(ended - began, 2),
                "before_records_per_second": round(before),
                "during_records_per_second": round(during),
                "ratio": round(during / before, 3),
                "worst_second_ratio": round(worst / before, 3),
            }
        )
        print(f"join: {json.dumps(runs[-1])}", file=sys.stderr, flush=True)
    ratios = sorted(run["ratio"] for run in runs)
    middle = ratios[len(ratios) // 2]
    outcome = Outcome(
        f"{options.members} members read {PARTITIONS_A_MEMBER * (options.members + 1)} partitions in"
        f" {options.processes} processes, and another one joins: rate of the other members during the join, relative to"
        " their rate before",
        f"{middle:.0%} in the median of {len(ratios)} joins ({ratios[0]:.0%} to {ratios[-1]:.0%})",
        f"at least {RATIO_MIN:.0%}",
        middle >= RATIO_MIN,
    )
    return {"runs": runs, "outcomes": [outcome.document()]}


def _rate(read: Mapping[int, int], start: float, stop: float) -> float:
    """Return the number of records per second between two times, counted in whole tenths of a second."""
    first = int(start * BUCKETS_A_SECOND) + 1
    last = max(int(stop * BUCKETS_A_SECOND), first + 1)
    return sum(read.get(bucket, 0) for bucket in range(first, last)) * BUCKETS_A_SECOND / (last - first)


@dataclass
class Witness:
    """Members in this process, and the time at which each partition of a killed member is read again."""

    lost: frozenset[TopicPartition] = frozenset()
    seen: dict[TopicPartition, float] = field(default_factory=dict)

    async def read(self, consumer: Consumer) -> None:
        """Read records until cancelled."""
        async for batch in consumer:
            if batch.topic_partition in self.lost:
                self.seen.setdefault(batch.topic_partition, time.monotonic())

    async def all_seen(self) -> bool:
        """Return whether every partition of the killed member is read again."""
        return self.lost <= self.seen.keys()


@asynccontextmanager
async def _in_background(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        yield
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _produce_slowly(cluster: FairleadCluster, topic: str) -> None:
    """Repeatedly send one record to each partition."""
    async with Producer(cluster.bootstrap, linger_ms=0, delivery_timeout="60s") as producer:
        while True:
            for partition in range(FEW_PARTITIONS):
                await producer.send(topic, b"x" * 100, partition=partition)
            await asyncio.sleep(PACE_SECONDS)


def member(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Kill a member repeatedly; measure the time until other members read all partitions of the killed member."""
    cluster = FairleadCluster.start(folder / "fairlead", lease_seconds=options.lease_seconds)
    try:
        return asyncio.run(_member_kills(cluster, options))
    finally:
        cluster.stop()


async def _member_kills(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    await new_topic(cluster, "killed", FEW_PARTITIONS, {"durability": "replicated"})
    session = f"{options.session_seconds}s"
    witness, outages = Witness(), []
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(cluster.bootstrap))
        others = [
            await stack.enter_async_context(
                Consumer(cluster.bootstrap, group=GROUP, topics="killed", session_timeout=session)
            )
            for _ in range(2)
        ]
        ours = {consumer.membership.member_id for consumer in others}
        work = [witness.read(consumer) for consumer in others]
        await stack.enter_async_context(_in_background(_produce_slowly(cluster, "killed"), *work))
        for _ in range(options.runs):
            more = ("--records", str(2**60), "--session-seconds", str(options.session_seconds))
            victim = await asyncio.to_thread(Crew.start, cluster, "killed", 1, *more)
            victim.go()
            group = await _stable(admin, 3)
            # The kill happens at a random time between two heartbeats.
            await asyncio.sleep(1.0 + random.uniform(0, options.session_seconds / 3))
            owned = {
                TopicPartition(each.topic, partition)
                for one in group.members if one.member_id not in ours
                for each in one.assignment for partition in each.partitions
            }  # fmt: skip
            assert owned, group
            witness.seen, witness.lost = {}, frozenset(owned)
            killed_at = await asyncio.to_thread(victim.kill)
            await until(witness.all_seen, "another reader of the partitions")
            outages.append(max(witness.seen.values()) - killed_at)
            print(f"member: {outages[-1]:.2f} s", file=sys.stderr, flush=True)
            await _stable(admin, 2)
    target = options.session_seconds + 1.0
    outcome = Outcome(
        f"a member killed, session of {options.session_seconds} s: its partitions are read again, {options.runs} times",
        _times(outages),
        f"at most {target:g} s (session + 1 s)",
        max(outages) <= target,
    )
    return {"outages_seconds": outages, "outcomes": [outcome.document()]}


def _times(outages: list[float]) -> str:
    figures = percentiles(outages)
    return f"p50 {figures['p50_ms'] / 1000:.1f} s, longest {figures['max_ms'] / 1000:.1f} s"


def coordinator(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Kill the coordinator repeatedly; measure the time until the next coordinator accepts a heartbeat."""
    cluster = FairleadCluster.start(folder / "fairlead", lease_seconds=options.lease_seconds)
    try:
        return asyncio.run(_coordinator_kills(cluster, options))
    finally:
        cluster.stop()


async def _coordinator_kills(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    await new_topic(cluster, "led", FEW_PARTITIONS, {"durability": "replicated"})
    outages: list[float] = []
    standings: set[str] = set()
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(cluster.bootstrap))
        session = f"{COORDINATOR_SESSION_SECONDS}s"
        members = [
            await stack.enter_async_context(
                Consumer(cluster.bootstrap, group=GROUP, topics="led", session_timeout=session)
            )
            for _ in range(3)
        ]
        await stack.enter_async_context(_in_background(*(Witness().read(each) for each in members)))
        client = await stack.enter_async_context(PlainClient(tuple(cluster.urls.values())))
        plain = PlainMember(client, GROUP, "plain", "led")
        await plain.join(COORDINATOR_SESSION_SECONDS * 1000)
        for _ in range(options.runs):
            before = await _settled_with(plain, admin)
            standings.add(_standing(before))
            killed_at = await asyncio.to_thread(cluster.kill_broker, before.coordinator)
            client.addresses = tuple(
                url for broker, url in cluster.urls.items() if broker != before.coordinator
            )
            await until(_accepted(plain), "a heartbeat")
            outages.append(time.monotonic() - killed_at)
            # The members of the SDK must have sent heartbeats before the group is checked.
            await until(_succeeding(members), "heartbeats of the SDK's members")
            standings.add(_standing(await admin.describe_group(GROUP)))
            print(f"coordinator: {outages[-1]:.2f} s", file=sys.stderr, flush=True)
            await asyncio.to_thread(cluster.start_broker, before.coordinator)
            client.addresses = tuple(cluster.urls.values())
            await settled(cluster)
    target, rebalances = options.lease_seconds + 1.0, len(standings) - 1
    outcome = Outcome(
        f"the coordinator killed, leases of {options.lease_seconds} s: a heartbeat is accepted, {options.runs} times",
        f"{_times(outages)}, {rebalances} rebalances",
        f"at most {target:g} s (lease + 1 s), no rebalance",
        max(outages) <= target and rebalances == 0,
    )
    return {"outages_seconds": outages, "outcomes": [outcome.document()]}


async def _settled_with(plain: PlainMember, admin: Admin) -> GroupDescription:
    """Send heartbeats until all four members have their assigned partitions."""
    while True:
        await plain.beat()
        group = await admin.describe_group(GROUP)
        if group.state == "stable" and len(group.members) == 4:
            return group
        await asyncio.sleep(0.1)


def _standing(group: GroupDescription) -> str:
    """Return the values that a rebalance would change: epochs and assignments."""
    members = sorted(group.members, key=lambda each: each.member_id)
    return repr((group.epoch, [(each.member_id, each.member_epoch, each.assignment) for each in members]))


def _accepted(plain: PlainMember) -> Condition:
    async def look() -> bool:
        """Send one heartbeat, and return whether the coordinator accepts it."""
        return await plain.beat(timeout_seconds=1.0)

    return look


def _succeeding(members: list[Consumer]) -> Condition:
    async def look() -> bool:
        """Return whether the heartbeats of all members succeed."""
        return all(each.membership.heartbeat_failing_seconds is None for each in members)

    return look
