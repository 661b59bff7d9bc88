"""Commands for cluster administration against three brokers: output and exit codes."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkout import ROOT
from cluster_kit import Cluster
from command_line_kit import CommandLine
from page_kit import blocks
from waiting import COMMAND_SECONDS, pause_blocking

pytestmark = pytest.mark.slow
JSON = ("--output", "json")


@pytest.fixture(scope="module")
def addresses(shell_environment: dict[str, str]) -> Iterator[list[str]]:
    """Yield the data listeners of three brokers in one process, by broker id."""
    command = ["fairlead", "dev", "up", "--brokers", "3", "--listen", "127.0.0.1:0", *JSON]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=shell_environment)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert ready, "the brokers ended before they were ready"
        yield [broker["data"] for broker in json.loads(ready)["brokers"]]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()


@pytest.fixture
def cluster(addresses: list[str], shell_environment: dict[str, str]) -> CommandLine:
    """Return the command line with the address of one broker."""
    return CommandLine({**shell_environment, "FAIRLEAD_BOOTSTRAP": addresses[1]})


@pytest.fixture
def topic(cluster: CommandLine, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a topic with one partition and a replica on each of the three brokers."""
    name = request.node.name.replace("[", ".").replace("]", "")
    cluster("topic", "create", name, "-p", "1", "-r", "3")
    yield name
    cluster("topic", "delete", name, "--yes")


def rows(cluster: CommandLine, *arguments: str) -> Any:
    """Return a command's JSON answer."""
    return json.loads(cluster(*arguments, *JSON))


def until(found: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """Repeat the command until its answer satisfies a condition."""
    deadline = time.monotonic() + 30
    while not holds(answer := found()):
        assert time.monotonic() < deadline, answer
        pause_blocking(COMMAND_SECONDS)
    return answer


def partition(cluster: CommandLine, topic: str) -> Any:
    """Return the only partition of a topic."""
    return rows(cluster, "topic", "describe", topic)["partitions"][0]


def test_changes_are_printed_for_programs(cluster: CommandLine) -> None:
    """Every change is printed as JSON and as YAML, with the broker's new state or the name of the deleted topic."""
    cordoned = rows(cluster, "broker", "cordon", "2")
    uncordoned = rows(cluster, "broker", "uncordon", "2")
    draining = rows(cluster, "broker", "drain", "2")
    rested = rows(cluster, "broker", "undrain", "2")
    cluster("topic", "create", "gone")

    assert (cordoned["id"], cordoned["cordoned"], uncordoned["cordoned"]) == (2, True, False)
    assert (draining["state"], rested["state"]) == ("draining", "running")
    assert cluster("topic", "delete", "gone", "--yes", "--output", "yaml") == "topic: gone\n"


def test_brokers_are_listed_with_their_partitions(cluster: CommandLine, topic: str) -> None:
    """Brokers are listed with address, state and the numbers of partitions that they lead and store."""
    brokers = rows(cluster, "broker", "list")
    table = cluster("broker", "list").splitlines()

    assert [broker["state"] for broker in brokers] == ["running"] * 3
    assert table[0].split() == ["BROKER", "ADDRESS", "RACK", "STATE", "LEADERS", "REPLICAS"]
    assert sum(int(line.split()[-2]) for line in table[1:]) >= 1
    assert [int(line.split()[-1]) for line in table[1:]] == [int(table[1].split()[-1])] * 3
    assert topic in cluster("topic", "list")


def test_a_broker_is_described(cluster: CommandLine, addresses: list[str]) -> None:
    """The description of a broker contains its configuration and says whether it is the controller."""
    numbers = [broker["id"] for broker in rows(cluster, "broker", "list")]
    described = [rows(cluster, "broker", "describe", str(number)) for number in numbers]
    tables = [cluster("broker", "describe", str(number)) for number in numbers]

    assert [each["broker"]["address"] for each in described] == addresses
    assert sum("yes" in table.split("controller", 1)[1].splitlines()[0] for table in tables) == 1
    assert all("cordoned" in each["config"] for each in described)


@pytest.mark.parametrize("command", [("broker", "describe"), ("broker", "cordon"), ("broker", "drain")])
def test_a_broker_that_is_not_there_ends_with_three(cluster: CommandLine, command: tuple[str, ...]) -> None:
    """For an unknown broker, the command exits with 3 and names the broker in the message."""
    assert cluster(*command, "99", code=3) == ""
    assert "99" in cluster.errors


def test_a_cordoned_broker_gets_no_new_replicas(cluster: CommandLine) -> None:
    """A cordoned broker gets no new replicas until it is uncordoned, and every broker shows the cordon."""
    number = str(rows(cluster, "broker", "list")[0]["id"])
    assert cluster("broker", "cordon", number) == f"broker {number} gets no new replicas\n"
    try:
        states = cluster("broker", "list")
        cluster("topic", "create", "on-all", "-r", "3", code=4)
        refusal = cluster.errors
    finally:
        assert cluster("broker", "uncordon", number) == f"broker {number} may get new replicas\n"

    assert "running, cordoned" in states
    assert "3 replicas" in refusal
    assert "cordoned" not in cluster("broker", "list")


def test_a_drained_broker_leads_nothing_until_it_is_undrained(cluster: CommandLine, topic: str) -> None:
    """A drained broker leads no partition, and keeps replicas that no other broker can take."""
    cluster("produce", topic, typed=b"before\n")
    leader = partition(cluster, topic)["leader"]
    assert cluster("broker", "drain", str(leader)) == f"broker {leader} is draining\n"
    warned = cluster.errors
    try:
        health = rows(cluster, "cluster", "health")
        moved = until(lambda: partition(cluster, topic), lambda now: now["leader"] not in (None, leader))
        until(
            lambda: {each["id"]: each["state"] for each in rows(cluster, "broker", "list")},
            lambda states: states[leader] == "draining",
        )
        cluster("produce", topic, typed=b"meanwhile\n")
    finally:
        assert cluster("broker", "undrain", str(leader)) == f"broker {leader} is no longer draining\n"
    until(
        lambda: {each["id"]: each["state"] for each in rows(cluster, "broker", "list")},
        lambda states: states[leader] == "running",
    )

    # Three replicas on three brokers: no other broker can take a replica.
    assert "cannot finish" in warned
    assert f"{topic}-0" in warned
    assert [(each["broker"], f"{topic}-0" in each["immovable"]) for each in health["drains"]] == [
        (leader, True)
    ]
    assert moved["leader_epoch"] > 0
    assert cluster("consume", topic, "--from-beginning", "-e") == "before\nmeanwhile\n"


def test_a_partition_moves_and_a_move_is_refused(cluster: CommandLine) -> None:
    """A partition moves from two brokers to a third; an impossible move is refused with the exit code for refusals."""
    numbers = [broker["id"] for broker in rows(cluster, "broker", "list")]
    cluster("topic", "create", "moving", "-p", "1", "-r", "2")
    cluster("produce", "moving", typed=b"one\ntwo\n")
    kept = partition(cluster, "moving")["replicas"]
    [other] = set(numbers) - set(kept)
    wanted = [other, kept[0]]
    started = rows(cluster, "partition", "reassign", "moving", "0", "--to", ",".join(map(str, wanted)))
    until(lambda: partition(cluster, "moving")["replicas"], lambda now: now == wanted)
    moves = until(lambda: rows(cluster, "partition", "moves"), lambda now: now == [])

    assert started["adding"] == [other]
    assert started["removing"] == [kept[1]]
    assert moves == []
    assert "ADDING" in cluster("partition", "moves")
    assert cluster("consume", "moving", "--from-beginning", "-e") == "one\ntwo\n"
    cluster("partition", "reassign", "moving", "0", "--to", "77", code=3)
    assert "77" in cluster.errors
    cluster("partition", "reassign", "moving", "5", "--to", str(other), code=3)
    cluster("partition", "reassign", "moving", "0", "--to", "x", code=2)
    cluster("partition", "reassign", "moving", "0", "--to", "²", code=2)
    cluster("partition", "reassign", "moving", "0", code=2)
    cluster("topic", "delete", "moving", "--yes")


def test_every_replica_of_a_compacted_partition_is_cleaned_on_request(
    cluster: CommandLine, topic: str
) -> None:
    """A requested round cleans replicas below the minimum dirty ratio; a topic that is not compacted is refused."""
    cluster("partition", "clean", topic, "0", code=4)
    cluster("topic", "create", "table", "-p", "1", "-r", "3", "-c", "cleanup.policy=compact")
    for value in range(3):
        cluster("produce", "table", "--key-separator", "=", typed=b"a=%d\nb=%d\n" % (value, value))
    before = rows(cluster, "partition", "describe", "table", "0")
    found = rows(cluster, "partition", "clean", "table", "0", "--wait")
    shown = cluster("partition", "describe", "table", "0")
    left = cluster("consume", "table", "--from-beginning", "-e")
    [compared] = rows(cluster, "partition", "digest", "table", "0", "--latest")
    cluster("partition", "digest", topic, "0", "--latest", code=4)
    cluster("partition", "digest", "table", "0", "--latest", "--from", "1", code=2)
    cluster("topic", "delete", "table", "--yes")

    assert [(each["cleaned_offset"], each["last_round"]) for each in before["replicas"]] == [(0, None)] * 3
    assert [each["state"] for each in found["replicas"]] == ["held"] * 3
    assert [each["cleaned_offset"] for each in found["replicas"]] == [6] * 3
    assert [each["requested_offset"] for each in found["replicas"]] == [None] * 3
    rounds = [each["last_round"] for each in found["replicas"]]
    assert [(each["outcome"], each["kept_records"], each["dropped_records"]) for each in rounds] == [
        ("done", 2, 4)
    ] * 3
    assert shown.count("done at ") == 3
    assert left == "2\n2\n"
    assert compared["identical"]
    assert (compared["first_offset"], compared["end_offset"]) == (0, 6)
    assert [each["state"] for each in compared["replicas"]] == ["compared"] * 3


def test_the_preferred_leader_is_elected(cluster: CommandLine, topic: str) -> None:
    """A preferred leader leads again on request after a drain, and no unnecessary election takes place."""
    preferred = partition(cluster, topic)["replicas"][0]
    cluster("broker", "drain", str(preferred))
    until(lambda: partition(cluster, topic)["leader"], lambda leader: leader not in (None, preferred))
    cluster("broker", "undrain", str(preferred))
    until(
        lambda: {each["id"]: each["state"] for each in rows(cluster, "broker", "list")},
        lambda states: states[preferred] == "running",
    )
    table = cluster("partition", "elect", topic, "0")
    again = rows(cluster, "partition", "elect", topic, "0", "--kind", "preferred")

    assert table.splitlines()[1].split()[:3] == [topic, "0", str(preferred)]
    assert again["leader"] == preferred
    unneeded = rows(cluster, "partition", "elect", topic, "0", "--kind", "unclean")
    assert unneeded["leader_epoch"] == again["leader_epoch"]
    cluster("partition", "elect", topic, "0", "--kind", "wishful", code=2)


def test_the_commands_of_the_page_about_write_quorums(cluster: CommandLine) -> None:
    """A topic with a write quorum is created, its quorum becomes larger, and each replica is shown as a voter."""
    page = (ROOT / "docs/explanation/quorum.md").read_text(encoding="utf-8")
    [commands] = blocks(page, "console")
    printed = [cluster(*shlex.split(line)[1:]) for line in commands.text.splitlines()]
    shown = until(
        lambda: rows(cluster, "partition", "voters", "payments", "0"), lambda found: found["write"] == 3
    )
    cluster("topic", "delete", "payments", "--yes")

    assert "write quorum" in printed[-1]
    assert len(shown["voters"]) == len(shown["standings"]) == 3


def test_one_broker_at_a_time_may_be_restarted(cluster: CommandLine, topic: str) -> None:
    """A cluster has one restart permit, and a running broker cannot be forgotten."""
    until(lambda: partition(cluster, topic)["isr"], lambda isr: len(isr) == 3)
    first, second, *_ = [str(broker["id"]) for broker in rows(cluster, "broker", "list")]
    granted = cluster("broker", "request-restart", first)
    again = rows(cluster, "broker", "request-restart", first)
    cluster("broker", "request-restart", second, code=4)
    refusal = cluster.errors
    cluster("broker", "unregister", second, code=4)

    assert granted == f"broker {first} may be restarted within 300 s\n"
    assert (again["broker"], again["seconds"]) == (int(first), 300)
    assert "restart_refused" in refusal
    cluster("broker", "request-restart", "99", code=3)


def test_a_healthy_cluster_is_reported(cluster: CommandLine, topic: str) -> None:
    """For a healthy cluster, the command prints the cluster's counts and exits with 0."""
    health = until(lambda: rows(cluster, "cluster", "health"), lambda now: now["healthy"])
    table = cluster("cluster", "health")
    info = rows(cluster, "cluster", "info")

    assert (health["brokers"], health["without_leader"], health["under_replicated"]) == (3, 0, 0)
    assert health["controller"] == info["controller"]
    assert health["partitions"] >= 1
    assert health["ailing"] == []
    assert "under replicated" in table
    assert partition(cluster, topic)["isr"] != []


async def test_an_unhealthy_cluster_ends_with_one(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    """For an unhealthy cluster, the command exits with 1 and names the partitions that are not healthy."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3)
        topic_id = await cluster.topic("flights")
        await cluster.stop(3)
        await cluster.in_sync(topic_id, 1, 2)
        bootstrap = f"http://{cluster.brokers[1].addresses.data}"
        line = CommandLine({**shell_environment, "FAIRLEAD_BOOTSTRAP": bootstrap})
        ailing = json.loads(await asyncio.to_thread(line, "cluster", "health", *JSON, code=1))
        table = await asyncio.to_thread(line, "cluster", "health", code=1)
        listed = json.loads(await asyncio.to_thread(line, "broker", "list", *JSON))
        described = await asyncio.to_thread(line, "broker", "describe", "3")
        await cluster.start(3)
        await cluster.in_sync(topic_id, 1, 2, 3)
        whole = json.loads(await asyncio.to_thread(line, "cluster", "health", *JSON))
    finally:
        await cluster.close()

    assert (ailing["healthy"], ailing["under_replicated"]) == (False, 1)
    assert [(each["topic"], each["missing"]) for each in ailing["ailing"]] == [("flights", [3])]
    assert (ailing["brokers"], ailing["gone"], ailing["under_min_isr"]) == (2, [3], 0)
    assert "NOT IN SYNC" in table
    assert [(each["state"], each["address"] is None) for each in listed] == [
        ("running", False),
        ("running", False),
        ("gone", True),
    ]
    assert "gone" in described
    assert (whole["healthy"], whole["gone"]) == (True, [])


def test_topics_are_described_with_leader_isr_and_epoch(cluster: CommandLine, topic: str) -> None:
    """A topic is described with leader, in-sync replicas and leader epoch of each partition."""
    described = partition(cluster, topic)
    table = cluster("topic", "describe", topic)

    assert sorted(described["isr"]) == sorted(described["replicas"])
    assert described["leader"] in described["isr"]
    assert "ISR" in table
    assert "EPOCH" in table
