"""Cost of the heartbeats and commits of a thousand groups, each of which has ten members and ten partitions.

`groups.py` calls `scale`. When run as a program, this file simulates some of the groups and is controlled by lines on
its standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

import uvloop
from failover import new_topic
from pairing import Outcome
from peers.brokers import HERE
from peers.clusters import BROKERS, FairleadCluster
from throughput import VALUE_BYTES
from workloads.plain_groups import PlainClient, PlainMember

TOPIC = "scale"
MEMBERS = 10
PARTITIONS = 10
RECORDS = 100_000
SESSION_MS = 45_000
COMMIT_SECONDS = 5.0
JOINS_AT_ONCE = 16
REST_PAUSE_SECONDS = 0.5
"""Pause between two rounds of heartbeats while a group still assigns its partitions."""
IDLE_SECONDS = 10.0
CORE_SHARE_MAX = 0.2
TRANSACTIONS_A_SECOND_MAX = 500


@dataclass(slots=True)
class Players:
    """A process that simulates some of the groups."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, cluster: FairleadCluster, first: int, groups: int) -> Players:
        """Start the process, which waits for its first line."""
        command = [sys.executable, str(HERE / "groups_scale.py"), "--url", cluster.bootstrap]
        command += ["--first", str(first), "--groups", str(groups)]
        return cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def say(self, line: str) -> None:
        """Send a command to the process without waiting; `answer` returns its result."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, float]:
        """Wait for the answer of the process to the last command, and return the figures in the answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended"
        measured: dict[str, float] = json.loads(line)
        return measured


def scale(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure all groups while members join, while members send heartbeats, and while members also commit offsets."""
    cluster = FairleadCluster.start(folder / "fairlead", lease_seconds=options.lease_seconds)
    players: list[Players] = []
    try:
        asyncio.run(new_topic(cluster, TOPIC, PARTITIONS, {"durability": "replicated"}))
        load = [sys.executable, str(HERE / "workloads/workload.py"), "produce", "--url", cluster.bootstrap]
        load += ["--topic", TOPIC, "--partitions", str(PARTITIONS), "--value-bytes", str(VALUE_BYTES)]
        load += ["--records", str(RECORDS), "--batch-records", str(RECORDS // PARTITIONS)]
        subprocess.run(load, check=True, capture_output=True)
        share = -(-options.groups // options.clients)
        for first in range(0, options.groups, share):
            one = Players.start(cluster, first, min(share, options.groups - first))
            players.append(one)
        return _phases(cluster, players, options)
    finally:
        for each in players:
            each.process.kill()
            each.process.wait()
        cluster.stop()


def _phases(
    cluster: FairleadCluster, players: list[Players], options: argparse.Namespace
) -> dict[str, object]:
    idle = _spent(cluster, IDLE_SECONDS)
    began = time.monotonic()
    for each in players:
        each.say("join")
    joined = [each.answer() for each in players]
    document: dict[str, object] = {
        "groups": options.groups,
        "members": options.groups * MEMBERS,
        "join_seconds": round(time.monotonic() - began, 1),
        "join_refused": sum(each["refused"] for each in joined),
        "idle": idle,
    }
    print(f"scale: joined after {document['join_seconds']} s", file=sys.stderr, flush=True)
    for phase in ("beat", "commit"):
        for each in players:
            each.say(phase)
        # Each member makes its first commit at a random time in its interval, so all members commit after one interval.
        time.sleep(COMMIT_SECONDS)
        measured = _spent(cluster, options.seconds)
        for each in players:
            each.say("pause")
        document[phase] = measured | _together([each.answer() for each in players])
        print(f"scale: {phase}: {json.dumps(document[phase])}", file=sys.stderr, flush=True)
    return document | {"outcomes": _outcomes(options.groups, document["beat"], document["commit"])}


def _outcomes(groups: int, beat: Any, commit: Any) -> list[dict[str, object]]:
    cores, transactions = beat["cores"].values(), commit["etcd_transactions_per_second"]
    beats = beat["heartbeats_per_second"] / BROKERS
    outcomes = (
        Outcome(
            f"{groups:,} groups of {MEMBERS} members on {PARTITIONS} partitions, heartbeats only: a broker's CPU",
            f"{max(cores):.2f} of a core ({min(cores):.3f} to {max(cores):.3f}), {beats:.0f} heartbeats a second each",
            f"at most {CORE_SHARE_MAX} of a core",
            max(cores) <= CORE_SHARE_MAX,
        ),
        Outcome(
            f"the same groups, while each member also commits every {COMMIT_SECONDS:g} s: transactions of etcd",
            f"{transactions:.0f} a second for {commit['commits_per_second']:,.0f} commits a second",
            f"below {TRANSACTIONS_A_SECOND_MAX} a second",
            transactions < TRANSACTIONS_A_SECOND_MAX,
        ),
    )
    return [each.document() for each in outcomes]


def _spent(cluster: FairleadCluster, seconds: float) -> dict[str, object]:
    """Return the usage in the given number of seconds: processor cores of brokers and etcd, and etcd transactions."""
    names = [f"broker-{broker}" for broker in range(BROKERS)]
    before = {name: cluster.cpu_seconds(name) for name in (*names, "etcd")}
    transactions, at = _transactions(cluster), time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - at
    cores = {name: round((cluster.cpu_seconds(name) - used) / spent, 3) for name, used in before.items()}
    return {
        "etcd_cores": cores.pop("etcd"),
        "cores": cores,
        "etcd_transactions_per_second": round((_transactions(cluster) - transactions) / spent, 1),
    }


def _transactions(cluster: FairleadCluster) -> float:
    """Return etcd's own count of transactions from all clients, including refused transactions."""
    with urllib.request.urlopen(f"{cluster.etcd_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    counts = [
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("grpc_server_handled_total") and 'grpc_method="Txn"' in line
    ]
    assert counts, "etcd counts no transactions"
    return sum(counts)


def _together(answers: list[dict[str, float]]) -> dict[str, object]:
    """Combine the figures of all processes: add up rates and refusals, and take the worst latencies."""
    rates: dict[str, object] = {
        name: round(sum(each[name] for each in answers), 1)
        for name in ("heartbeats_per_second", "commits_per_second", "refused")
    }
    latencies = {name: max(each[name] for each in answers) for name in answers[0] if name.endswith("_ms")}
    return rates | latencies


@dataclass
class Game:
    """The members of some groups, and their measurements since the last command."""

    client: PlainClient
    groups: list[list[PlainMember]]
    heartbeats: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    offset: int = 0

    async def join(self) -> None:
        """Join all members, a bounded number of groups at a time; stable groups continue with heartbeats."""
        gate = asyncio.Semaphore(JOINS_AT_ONCE)
        resting: list[asyncio.Task[None]] = []

        async def one(members: list[PlainMember]) -> None:
            """Join the members of one group, and send heartbeats until each member has its partition."""
            async with gate:
                await _come_to_rest(members)
            resting.extend(self.play(members, commits=False))

        await asyncio.gather(*(one(members) for members in self.groups))
        await _cancel(resting)

    def play(self, members: list[PlainMember], *, commits: bool) -> list[asyncio.Task[None]]:
        """Send heartbeats at the members' interval until cancelled; with `commits`, also commit offsets."""
        return [asyncio.ensure_future(self._play_one(each, commits=commits)) for each in members]

    async def _play_one(self, member: PlainMember, *, commits: bool) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + random.uniform(0, member.interval_seconds)
        commit_due = loop.time() + random.uniform(0, COMMIT_SECONDS)
        while True:
            if commits and commit_due < due:
                await asyncio.sleep(commit_due - loop.time())
                began = loop.time()
                self.offset += 1
                if await member.commit(self.offset % (RECORDS // PARTITIONS)):
                    self.commits.append(loop.time() - began)
                commit_due = max(commit_due + COMMIT_SECONDS, loop.time())
            else:
                await asyncio.sleep(due - loop.time())
                began = loop.time()
                if await member.beat():
                    self.heartbeats.append(loop.time() - began)
                due = max(due + member.interval_seconds, loop.time())

    def figures(self, seconds: float) -> dict[str, float]:
        """Return the measurements of the last `seconds`, and start the next measurement."""
        measured = {
            "heartbeats_per_second": round(len(self.heartbeats) / seconds, 1),
            "commits_per_second": round(len(self.commits) / seconds, 1),
            "refused": self.client.refused,
        }
        for name, found in (("heartbeat", self.heartbeats), ("commit", self.commits)):
            if found:
                found.sort()
                measured[f"{name}_p50_ms"] = round(median(found) * 1000, 1)
                measured[f"{name}_p99_ms"] = round(found[int(len(found) * 0.99)] * 1000, 1)
            found.clear()
        self.client.refused = 0
        return measured


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks of the simulation; raise the error of a task that had already failed."""
    failed = [task for task in tasks if task.done()]
    left = set(tasks)
    while left:
        # Tasks are cancelled repeatedly, since a task may ignore a cancellation that arrives during a call.
        for each in left:
            each.cancel()
        _, left = await asyncio.wait(left, timeout=1.0)
    for each in failed:
        each.result()


async def _come_to_rest(members: list[PlainMember]) -> None:
    for each in members:
        await each.join_at_last(SESSION_MS)
    while any(each.partition_count != PARTITIONS // MEMBERS for each in members):
        for each in members:
            await each.beat()
        await asyncio.sleep(REST_PAUSE_SECONDS)


async def _play(options: argparse.Namespace) -> None:
    async with PlainClient(tuple(options.url.split(","))) as client:
        numbers = range(options.first, options.first + options.groups)
        groups = [
            [PlainMember(client, f"group-{number}", f"member-{member}", TOPIC) for member in range(MEMBERS)]
            for number in numbers
        ]
        game = Game(client, groups)
        playing: list[asyncio.Task[None]] = []
        began = time.monotonic()
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if line == "join":
                await game.join()
            elif line == "pause":
                await _cancel(playing)
            else:
                game.figures(1.0)
                began = time.monotonic()
                playing = [task for each in groups for task in game.play(each, commits=line == "commit")]
                continue
            _print_result(sys.stdout, game.figures(time.monotonic() - began))


def _print_result(output: IO[str], document: dict[str, float]) -> None:
    output.write(json.dumps(document) + "\n")
    output.flush()


def main() -> None:
    """Parse the command line, and simulate groups until standard input is closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="addresses of the brokers")
    parser.add_argument("--first", type=int, required=True, help="number of the first group")
    parser.add_argument("--groups", type=int, required=True)
    uvloop.run(_play(parser.parse_args()))


if __name__ == "__main__":
    main()
