"""Time and memory that the console needs for pages of a cluster with many topics and groups.

    python benchmarks/workloads/console_pages.py [--topics 1000] [--groups 100] [--brokers 3] [--tab-seconds 60]

The brokers run in this process, and the console runs in a separate process. The first list of topics is requested
immediately after the start of the console. Then each page is requested repeatedly, and its server time is measured. At
the end, ten tabs refresh themselves as browsers do. Each result is a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from fairlead import Admin, Producer, TopicPartition
from fairlead.testing import running_cluster

PAGES = (
    "/",
    "/topics",
    "/topics?sort=size",
    "/topics/t-00000",
    "/groups",
    "/groups/g-00000",
    "/brokers",
    "/brokers/0",
)
REQUESTS = 40
REFRESH_SECONDS = 10
CALLS = 16
FIRST_SECONDS_MAX, P95_SECONDS_MAX, MEMORY_MIB_MAX = 1.0, 0.150, 150


async def load(bootstrap: str, topics: int, groups: int) -> None:
    """Create topics with a record each, and groups with an offset each."""
    slots = asyncio.Semaphore(CALLS)
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:

        async def create(number: int) -> None:
            async with slots:
                await admin.create_topic(f"t-{number:05d}", partitions=1)

        async def commit(number: int) -> None:
            async with slots:
                place = TopicPartition(f"t-{number % topics:05d}", 0)
                await admin.commit_group_offsets(f"g-{number:05d}", {place: 0})

        await asyncio.gather(*(create(number) for number in range(topics)))
        for number in range(min(topics, 1000)):
            await producer.send(f"t-{number:05d}", b"v" * 100)
        await producer.flush()
        await asyncio.gather(*(commit(number) for number in range(groups)))


@contextmanager
def running_console(bootstrap: str) -> Iterator[tuple[str, int]]:
    """Run a console, and yield its host and process id."""
    fairlead = str(Path(sys.executable).with_name("fairlead"))
    command = [fairlead, "console", "--bootstrap", bootstrap, "--listen", "127.0.0.1:0", "--output", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None, "the output is a pipe"
        yield urlsplit(json.loads(process.stdout.readline())["console"]).netloc, process.pid
        process.terminate()


def request(host: str, path: str) -> tuple[float, int]:
    """Return the seconds of one request and the size of its answer."""
    connection = http.client.HTTPConnection(host, timeout=60)
    begun = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    seconds = time.perf_counter() - begun
    connection.close()
    if answer.status != 200:
        message = f"{path} answers {answer.status}"
        raise RuntimeError(message)
    return seconds, len(body)


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) / 1024


def tabs(host: str, seconds: float) -> int:
    """Refresh ten tabs as browsers do, and return the number of requests."""
    ends, counts = time.monotonic() + seconds, [0] * 10

    def tab(number: int) -> None:
        pause = threading.Event()
        while time.monotonic() < ends:
            request(host, PAGES[number % len(PAGES)])
            counts[number] += 1
            pause.wait(REFRESH_SECONDS)

    threads = [threading.Thread(target=tab, args=(number,)) for number in range(len(counts))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(counts)


def show(**result: object) -> None:
    """Print a result."""
    print(json.dumps(result), flush=True)


def main() -> None:
    """Load a cluster, measure, and print the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--tab-seconds", type=float, default=60)
    given = parser.parse_args()
    with running_cluster(brokers=given.brokers) as bootstrap:
        asyncio.run(load(bootstrap, given.topics, given.groups))
        with running_console(bootstrap) as (host, pid):
            first, nbytes = request(host, "/topics")
            show(case="first list of topics", topics=given.topics, seconds=round(first, 3), bytes=nbytes,
                 is_in_target=first <= FIRST_SECONDS_MAX)  # fmt: skip
            warm, _ = request(host, "/topics/t-00000")
            show(case="first page of a topic", seconds=round(warm, 3))
            for path in PAGES:
                request(host, path)
                times = sorted(request(host, path)[0] for _ in range(REQUESTS))
                p95 = times[int(0.95 * REQUESTS)]
                show(case=path, p50=round(statistics.median(times), 4), p95=round(p95, 4),
                     is_in_target=p95 <= P95_SECONDS_MAX)  # fmt: skip
            requests = tabs(host, given.tab_seconds)
            memory = memory_mib(pid)
            show(case="ten tabs", seconds=given.tab_seconds, requests=requests, memory_mib=round(memory, 1),
                 is_in_target=memory <= MEMORY_MIB_MAX)  # fmt: skip


if __name__ == "__main__":
    main()
