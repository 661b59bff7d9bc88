"""Real etcd clusters for tests: processes on free ports of 127.0.0.1 that can be killed, paused and started again.

tests/etcd and the conformance suite of coordination use the clusters. Processes end with their parent process, even if
the parent is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

from etcd_build import etcd_binaries, member_command
from fairlead_broker.coordination.etcd import EtcdCoordination, EtcdOptions, EtcdPatience, EtcdTls, EtcdUser
from fairlead_broker.coordination.protocol import CoordinationUnavailable

START_SECONDS = 30.0
"""Time limit for a start, much longer than a start takes, because a machine may be busy."""
QUICK = EtcdPatience(connect_seconds=1.0, attempt_seconds=1.0, call_seconds=10.0, silence_seconds=1.0)
"""Timeouts for tests that make members fail: short enough to notice a failure soon, and long enough for an election on
a busy machine.
"""
# A single member elects itself at once, and can grant short leases.
ALONE = ("--heartbeat-interval=10", "--election-timeout=100")
# With a long election timeout, a slow leader on a busy machine stays the leader.
TOGETHER = ("--heartbeat-interval=100", "--election-timeout=1000")
# The results of these tests do not depend on the disk of etcd.
QUICK_DISK = ("--unsafe-no-fsync",)


@dataclass(slots=True)
class EtcdMember:
    """One member of the cluster, whether its process runs or not."""

    name: str
    folder: Path
    client_port: int
    peer_port: int
    scheme: str
    initial_cluster: str | None = None
    """All members as `name=peer url`, separated by commas; None for a single member."""
    arguments: tuple[str, ...] = ()
    peer_scheme: str = "http"
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"{self.scheme}://127.0.0.1:{self.client_port}"

    @property
    def peer_url(self) -> str:
        """URL for other members."""
        return f"{self.peer_scheme}://127.0.0.1:{self.peer_port}"

    def start(self) -> None:
        """Start the member on its existing data."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            *(["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []),
            *member_command(
                self.folder / "data",
                self.url,
                self.peer_url,
                name=self.name,
                initial_cluster=self.initial_cluster,
            ),
            *self.arguments,
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill the member with SIGKILL, even if it is paused."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Pause the member with its connections open, and return when it is paused."""
        self._signal(signal.SIGSTOP)
        assert self.process is not None, f"{self.name} does not run"
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Resume the member."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None, f"{self.name} does not run"
        os.kill(self.process.pid, number)


@dataclass(slots=True)
class EtcdCluster:
    """A cluster of one to three members."""

    members: Sequence[EtcdMember]
    tls: EtcdTls | None = None
    _clients: list[EtcdCoordination] = field(default_factory=list)

    @property
    def urls(self) -> tuple[str, ...]:
        """URLs of the members for clients."""
        return tuple(member.url for member in self.members)

    def options(
        self, *, user: EtcdUser | None = None, patience: EtcdPatience = QUICK, urls: Sequence[str] = ()
    ) -> EtcdOptions:
        """Return the options for a client that connects to all members, or to the given URLs."""
        return EtcdOptions(tuple(urls) or self.urls, self.tls, user, patience)

    def client(
        self, *urls: str, user: EtcdUser | None = None, patience: EtcdPatience = QUICK
    ) -> EtcdCoordination:
        """Create a client, which is closed with the cluster."""
        client = EtcdCoordination(self.options(user=user, patience=patience, urls=urls))
        self._clients.append(client)
        return client

    async def wait_until_ready(self, members: Sequence[EtcdMember] = ()) -> None:
        """Wait until each member answers a linearizable read."""
        patience = EtcdPatience(connect_seconds=1.0, attempt_seconds=5.0, call_seconds=START_SECONDS)
        for member in members or self.members:
            async with EtcdCoordination(self.options(patience=patience, urls=(member.url,))) as client:
                try:
                    await client.list("/ready")
                except CoordinationUnavailable as error:
                    said = (member.folder / "log").read_text()[-2000:]
                    msg = f"{member.name} did not start: {error}\n{said}"
                    raise AssertionError(msg) from error

    async def leader(self) -> EtcdMember:
        """Return the current leader, once the first running member knows it."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                statuses = json.loads(await self.etcdctl("endpoint", "status", "--write-out=json"))
                leader_id = statuses[0]["Status"]["leader"]
                for each in statuses:
                    # During an election, members know no leader.
                    if each["Status"]["header"]["member_id"] == leader_id:
                        return next(member for member in self.members if member.url == each["Endpoint"])

    async def etcdctl(self, *arguments: str, user: str | None = None) -> str:
        """Run etcdctl against the running members, and return its output."""
        running = ",".join(member.url for member in self.members if member.process is not None)
        command = [str(etcd_binaries().etcdctl), f"--endpoints={running}", *arguments]
        if self.tls is not None:
            command += [f"--cacert={self.tls.ca}", f"--cert={self.tls.certificate}", f"--key={self.tls.key}"]
        if user is not None:
            command.append(f"--user={user}")
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        out, error = await process.communicate()
        assert process.returncode == 0, f"etcdctl {' '.join(arguments)}: {error.decode()}"
        return out.decode()

    async def close(self) -> None:
        """Close the clients and stop the members."""
        for client in self._clients:
            await client.close()
        for member in self.members:
            member.kill()


@asynccontextmanager
async def etcd_cluster(
    folder: Path,
    size: int = 1,
    *,
    arguments: Sequence[str] = (),
    tls: EtcdTls | None = None,
    peer_scheme: str = "http",
    wait: bool = True,
) -> AsyncIterator[EtcdCluster]:
    """Run a new cluster; additional arguments are passed to every member."""
    ports = free_ports()
    scheme = "http" if tls is None else "https"
    members = [
        EtcdMember(
            f"member-{n}", folder / f"member-{n}", next(ports), next(ports), scheme, peer_scheme=peer_scheme
        )
        for n in range(size)
    ]
    initial = ",".join(f"{member.name}={member.peer_url}" for member in members)
    for member in members:
        timing = ALONE if size == 1 else TOGETHER
        member.initial_cluster = initial
        member.arguments = (*timing, *QUICK_DISK, *arguments)
    cluster = EtcdCluster(members, tls)
    try:
        for member in members:
            member.start()
        if wait:
            await cluster.wait_until_ready()
        yield cluster
    finally:
        await cluster.close()


def free_ports() -> Iterator[int]:
    """Yield free ports, and no port twice until this process has used all of its ports.

    The ports are below the ports of outgoing connections and in a block that belongs to this process, so that a killed
    member gets its own ports again regardless of tests that run at the same time.
    """
    block = _own_block()
    while True:
        port = block[next(_handed_out) % len(block)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


@cache
def _own_block() -> range:
    """Reserve a block by its first port, which stays bound until this process ends."""
    blocks = (30_000 - 12_000) // BLOCK_PORTS
    for number in range(os.getpid(), os.getpid() + blocks):
        first = 12_000 + number % blocks * BLOCK_PORTS
        sentinel = socket.socket()
        try:
            sentinel.bind(("127.0.0.1", first))
        except OSError:
            sentinel.close()
            continue
        _sentinels.append(sentinel)
        return range(first + 1, first + BLOCK_PORTS)
    message = "every block of ports is taken"
    raise AssertionError(message)


BLOCK_PORTS = 200
_sentinels: list[socket.socket] = []
_handed_out = count()
