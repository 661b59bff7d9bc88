"""The how-to guide on clusters: the commands for each of its three kinds of cluster work as printed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import trustme

import checkout
from etcd_cluster import etcd_cluster, free_ports
from fairlead_broker.coordination.etcd import EtcdTls
from page_kit import PageShell, blocks, sections, words

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from pathlib import Path

SECTIONS = sections("how-to/clusters.md")
IN_ONE_PROCESS = "In one process, to develop against"
AS_PROCESSES = "As processes on one machine, to try things out"
ON_MACHINES = "On several machines"
SETTINGS = "What to expect when something fails"
FROM_ONE = "From one broker to a cluster"
READY_SECONDS_MAX = 120.0
STARTED = re.compile(r"broker (\d): data (\S+), ops \S+ \(process (\d+)\)")


def commands(section: str) -> list[str]:
    """Return the commands of a section."""
    return [block.text.rstrip() for block in blocks(SECTIONS[section], "console")]


async def read_until(process: Process, text: str) -> str:
    """Read a program's output until it contains the given text."""
    assert process.stdout is not None, "a pipe"
    printed = ""
    async with asyncio.timeout(READY_SECONDS_MAX):
        while text not in printed:
            line = await process.stdout.readline()
            assert line, f"it ended before it printed {text!r}: {printed}"
            printed += line.decode()
    return printed


async def end(process: Process, number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal, as a terminal or another program does, and wait until the process has ended."""
    os.killpg(process.pid, number)
    async with asyncio.timeout(READY_SECONDS_MAX):
        await process.communicate()


def free_port(*distances: int) -> int:
    """Return a free port such that the ports at the given distances above it are free as well."""
    found = set[int]()
    for port in free_ports():
        found.add(port)
        for first in (port - distance for distance in (0, *distances)):
            if found.issuperset({first, *(first + distance for distance in distances)}):
                return first
    raise AssertionError("the ports never end")


async def test_a_cluster_in_one_process(tmp_path: Path) -> None:
    """A cluster in one process prints three brokers with ports ten apart and creates topics with three replicas."""
    [command] = commands(IN_ONE_PROCESS)
    port = free_port(10, 20)
    shell = PageShell(tmp_path, {"FAIRLEAD_BOOTSTRAP": f"http://127.0.0.1:{port}"})
    async with shell.running(f"{command} --listen 127.0.0.1:{port}") as up:
        told = await read_until(up, f":{port + 20}")
        await shell.run("echo one | fairlead produce unknown")
        described = await shell.run("fairlead topic describe unknown --output json")
        await end(up, signal.SIGINT)

    assert [f"127.0.0.1:{port + distance}" in told for distance in (0, 10, 20)] == [True] * 3
    assert len(re.findall(r'"replicas":\s*\[\s*\d,\s*\d,\s*\d\s*\]', described)) == 1


@pytest.mark.etcd
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_cluster_of_processes_survives_a_kill(tmp_path: Path) -> None:
    """A cluster of processes prints how to restart a killed broker, and the page's commands show it as missing."""
    make, look = commands(AS_PROCESSES)
    [setting] = commands(SETTINGS)
    port, etcd_port = free_port(1, 2, 10, 11, 12, 20, 21, 22), free_port(1)
    # The prerequisite `setup` is skipped, because the tests already use the packages that it installs.
    command = make.replace("make", "make --assume-old=setup")
    command += f' CLUSTER="--port {port} --etcd-port {etcd_port} --data {tmp_path / "cluster"}"'
    shell = PageShell(tmp_path, {"FAIRLEAD_BOOTSTRAP": f"http://127.0.0.1:{port}"})
    async with PageShell(checkout.ROOT).running(command) as cluster:
        found = STARTED.findall(await read_until(cluster, "Ctrl-C stops all"))
        whole = await shell.run(look)
        await shell.run("fairlead topic create orders -p 3 -r 3")
        os.kill(next(int(pid) for number, _, pid in found if number == "2"), signal.SIGKILL)
        ended = await read_until(cluster, "    ")
        gone = await shell.until(look.replace("health", "health || true"), "2\t-\t-\tgone")
        refused, _, _ = await shell.answer(look)
        assert cluster.stdin is not None, "a pipe"
        cluster.stdin.write(b"2\n")
        await read_until(cluster, "broker 2: data")
        await shell.until("fairlead cluster health", "under replicated\t0")
        changed = await shell.run(setting)
        await end(cluster, signal.SIGINT)

    assert [number for number, _, _ in sorted(found)] == ["0", "1", "2"]
    assert [line[3] for line in words(whole)[1:4]] == ["running"] * 3
    assert "broker 2 was ended by SIGKILL; to start it again type 2 and Enter" in ended
    assert [line[3] for line in words(gone)[1:4]] == ["running", "running", "gone"]
    assert refused == 1
    assert ["replica.lag.time.max.ms", "10000", "cluster"] in words(changed)


@pytest.mark.etcd
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_one_broker_becomes_three_on_several_machines(tmp_path: Path) -> None:
    """A single broker moves with its topics and records to an etcd with TLS, and no longer starts without that etcd."""
    [start], [move] = commands(ON_MACHINES), commands(FROM_ONE)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "etcd.pem"))
    arguments = tuple(f"--{name}-file={tmp_path / 'etcd.pem'}" for name in ("cert", "key"))
    ports = free_ports()
    ops = {"FAIRLEAD_OPS_LISTEN": "127.0.0.1:0"}
    async with (
        AsyncExitStack() as stack,
        etcd_cluster(tmp_path / "etcd", 2, arguments=arguments, tls=EtcdTls(tmp_path / "ca.pem")) as etcd,
    ):
        theirs = {
            f"https://etcd-{number}.example:2379": member.url
            for number, member in enumerate(etcd.members, start=1)
        }

        def machine(number: int) -> PageShell:
            data, peer = next(ports), next(ports)
            addresses = {
                "--id 1": f"--id {number}",
                "zone-a": f"zone-{number}",
                "/var/lib/fairlead": str(tmp_path / f"machine-{number}"),
                "0.0.0.0:9520": f"127.0.0.1:{data}",
                "0.0.0.0:9521": f"127.0.0.1:{peer}",
                "broker-1.example:9520": f"127.0.0.1:{data}",
                "broker-1.example:9521": f"127.0.0.1:{peer}",
            }
            url = {"FAIRLEAD_BOOTSTRAP": f"http://127.0.0.1:{data}"}
            return PageShell(tmp_path, {**ops, **url}, {**addresses, **theirs})

        first, *others = machines = [machine(number) for number in (1, 2, 3)]
        alone = start.partition("--rack")[0].rstrip(" \\\n")
        async with first.running(alone) as broker:
            await read_until(broker, "\n")
            await first.run("fairlead topic create orders && seq 100 | fairlead produce orders")
            await end(broker)
        await first.run(move)
        await first.run(move)
        refused, _, why = await first.answer(alone)
        brokers = [await stack.enter_async_context(each.running(start)) for each in machines]
        for broker in brokers:
            await read_until(broker, "\n")
        listed = await others[0].run("fairlead broker list")
        read = await others[1].run("fairlead consume orders --from-beginning -e")
        described = await others[0].run("fairlead topic describe orders")
        for broker in brokers:
            await end(broker)

    assert refused == 1
    assert "start the broker with: --etcd" in why
    assert [line[0] for line in words(listed)[1:]] == ["1", "2", "3"]
    assert [line[2] for line in words(listed)[1:]] == ["zone-1", "zone-2", "zone-3"]
    assert read.split() == [str(number) for number in range(1, 101)]
    assert ["0", "1"] in [line[:2] for line in words(described)]
