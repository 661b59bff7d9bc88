"""A cluster with many topics and groups, a console in a separate process, and requests to the console.

The parts of `console.py` use this module. The brokers run in the process of the benchmark, as in `fairlead.testing`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from peers.brokers import with_bytecode

from fairlead import Admin, Producer, TopicPartition

CALLS = 16
"""Number of topics or groups that are created at a time."""
WRITTEN_TOPICS = 1000
"""Number of topics that get a record."""
CHROMIUM = "/usr/bin/chromium"


@dataclass(frozen=True, slots=True)
class Console:
    """A running console."""

    host: str
    pid: int

    def request(self, path: str) -> tuple[float, int]:
        """Return the seconds of one request and the status of its answer."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            begun = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return time.perf_counter() - begun, answer.status
        finally:
            connection.close()

    def seconds_of(self, path: str) -> float:
        """Return the seconds of a request that must succeed."""
        seconds, status = self.request(path)
        if status != http.HTTPStatus.OK:
            message = f"{path} answers {status}"
            raise RuntimeError(message)
        return seconds

    def memory_mib(self, what: str = "VmRSS") -> float:
        """Return the resident memory (`VmRSS`) or its peak (`VmHWM`)."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{what}:"))) / 1024


@contextmanager
def running_console(bootstrap: str) -> Iterator[Console]:
    """Run a console."""
    fairlead = str(Path(sys.executable).with_name("fairlead"))
    command = [fairlead, "console", "--bootstrap", bootstrap, "--listen", "127.0.0.1:0", "--output", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=with_bytecode()) as process:
        assert process.stdout is not None, "the output is a pipe"
        try:
            address = json.loads(process.stdout.readline())["console"]
            yield Console(urlsplit(address).netloc, process.pid)
        finally:
            process.terminate()


async def load(bootstrap: str, topics: int, groups: int, replicas: int = 3) -> None:
    """Create topics, the first of them with a record each, and groups with an offset each."""
    slots = asyncio.Semaphore(CALLS)
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:

        async def create(number: int) -> None:
            async with slots:
                await admin.create_topic(topic(number), partitions=1, replication_factor=replicas)

        async def commit(number: int) -> None:
            async with slots:
                place = TopicPartition(topic(number % topics), 0)
                await admin.commit_group_offsets(group(number), {place: 0})

        await asyncio.gather(*(create(number) for number in range(topics)))
        for number in range(min(topics, WRITTEN_TOPICS)):
            await producer.send(topic(number), b"v" * 100)
        await producer.flush()
        await asyncio.gather(*(commit(number) for number in range(groups)))


def topic(number: int) -> str:
    """Return the name of a topic."""
    return f"t-{number:05d}"


def group(number: int) -> str:
    """Return the name of a group."""
    return f"g-{number:05d}"
