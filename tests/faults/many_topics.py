"""Kills a broker with thousands of topics, starts it again, and deletes all topics at once while others are created.

Several clients create topics of one partition on a real `fairlead broker start`, each with a record. The broker is
killed with SIGKILL and started on the same data. When all topics exist, the clients delete them as fast as they can,
while two other clients create topics; in the middle of the deletion the broker is killed and started again. After each
start, a call creates a topic immediately. In the end the broker must still run, no answer may be `internal`, the
cluster must have the created topics and no others, and the log of the process must have no warnings.

`python many_topics.py --topics 1000` prints a JSON report and exits with 1 when a condition does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("plugins", "plugins/programs"))

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from broker_process import BrokerProcess
from fairlead_api.batch.batches import encode, record_batch

CLIENTS: Final = 8
CREATORS: Final = 2
START_SECONDS_MAX: Final = 600.0
BATCHES: Final = {"content-type": "application/vnd.fairlead.batches"}
RECORD: Final = encode(record_batch([b"record"], default_timestamp_us=1_700_000_000_000_000)).to_bytes()


@dataclass(slots=True)
class Report:
    """Counts and seconds of one run."""

    topics: int
    create_seconds: float = 0.0
    empty_start_seconds: float = 0.0
    start_seconds: list[float] = field(default_factory=list)
    """Seconds of each start after a kill: with all topics, in the middle of their deletion, and after it."""
    delete_seconds: float = 0.0
    created_meanwhile: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """Number of answers by method, status and code of the problem."""
    faults: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the report with rounded seconds."""
        return {
            "topics": self.topics,
            "clients": CLIENTS,
            "create_seconds": round(self.create_seconds, 2),
            "empty_start_seconds": round(self.empty_start_seconds, 2),
            "start_seconds": [round(each, 2) for each in self.start_seconds],
            "delete_seconds": round(self.delete_seconds, 2),
            "created_meanwhile": self.created_meanwhile,
            "answers": dict(sorted(self.answers.items())),
            "faults": self.faults,
        }


class Topics:
    """Topics of one broker, as its clients know them."""

    def __init__(self, broker: BrokerProcess, report: Report) -> None:
        self.expected: set[str] = set()
        self._broker = broker
        self._report = report
        self._numbers = iter(range(1 << 30))

    async def call(self, client: Client, method: str, path: str, body: object = None) -> int:
        """Send a request and count its answer."""
        request = client.request(method, f"{self._broker.url}/v1/topics{path}")
        if isinstance(body, bytes):
            request = request.headers(BATCHES).body_bytes(body)
        elif body is not None:
            request = request.body_json(body)
        answer = await request.build().send()
        code = "" if answer.status < 400 else f" {(await answer.json()).get('code')}"
        self._report.answers[f"{method} {answer.status}{code}"] += 1
        return int(answer.status)

    async def create(self, client: Client, name: str) -> None:
        """Create a topic. A creation whose answer was lost in a kill is repeated."""
        if await self.call(client, "POST", "", {"name": name}) in (201, 409):
            self.expected.add(name)

    async def fill(self, names: list[str]) -> None:
        """Create topics with several clients, and store one record in each topic."""
        waiting = list(names)

        async def work(client: Client) -> None:
            while waiting:
                name = waiting.pop()
                await self.create(client, name)
                await self.call(client, "POST", f"/{name}/partitions/0/records", RECORD)

        await _by_clients(CLIENTS, work)

    async def delete(self, names: list[str], *, until: int = 0) -> list[str]:
        """Delete topics until `until` are left, while other clients create topics; return the remaining topics."""
        waiting, deleting = list(names), True

        async def remove(client: Client) -> None:
            nonlocal deleting
            while len(waiting) > until:
                name = waiting.pop()
                if await self.call(client, "DELETE", f"/{name}") not in (200, 202, 204, 404):
                    waiting.append(name)
            deleting = False

        async def add(client: Client) -> None:
            while deleting:
                await self.create(client, f"new-{next(self._numbers)}")
                self._report.created_meanwhile += 1

        await asyncio.gather(_by_clients(CLIENTS, remove), _by_clients(CREATORS, add))
        return waiting

    async def check_start(self) -> None:
        """Create a topic right after a start, which must succeed at once."""
        async with _client() as client:
            name = f"first-{next(self._numbers)}"
            if await self.call(client, "POST", "", {"name": name}) != 201:
                self._report.faults.append(f"{name} was not created right after a start")
            self.expected.add(name)

    async def listed(self) -> set[str]:
        """Return the names of all topics."""
        found: set[str] = set()
        query = ""
        async with _client() as client:
            while True:
                answer = await client.get(f"{self._broker.url}/v1/topics?limit=1000{query}").build().send()
                page = await answer.json()
                found |= {item["name"] for item in page["items"]}
                if not page.get("next"):
                    return found
                query = f"&after={page['next']}"


async def _by_clients(count: int, work: Any) -> None:
    async def one() -> None:
        async with _client() as client:
            await work(client)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())


def _client() -> Any:
    return ClientBuilder().http2_prior_knowledge().build()


async def run(data: Path, topics: int) -> dict[str, Any]:
    """Create topics, kill the broker, delete half of the topics, kill it again, delete the rest; return the report."""
    report = Report(topics)
    log = data.with_name(data.name + ".log")
    broker = BrokerProcess(data, environment={"FAIRLEAD_LOG_FORMAT": "json"})
    of_clients = Topics(broker, report)
    names = [f"topic-{number}" for number in range(topics)]
    try:
        await asyncio.to_thread(broker.start, START_SECONDS_MAX)
        report.empty_start_seconds = broker.start_seconds
        await of_clients.check_start()
        begun = time.monotonic()
        await of_clients.fill(names)
        report.create_seconds = time.monotonic() - begun
        await _kill_and_start(broker, of_clients, report)
        begun = time.monotonic()
        left = await of_clients.delete(names, until=topics // 2)
        report.delete_seconds = time.monotonic() - begun
        await _kill_and_start(broker, of_clients, report)
        begun = time.monotonic()
        left = await of_clients.delete(left)
        report.delete_seconds += time.monotonic() - begun
        of_clients.expected -= set(names)
        if not broker.running:
            report.faults.append("the process ended")
        else:
            await _kill_and_start(broker, of_clients, report)
            if await of_clients.listed() != of_clients.expected:
                report.faults.append("the topics differ from those that clients created")
            if (code := await asyncio.to_thread(broker.stop)) != 0:
                report.faults.append(f"exit code {code}")
    except PyreqwestError as error:
        report.faults.append(f"a call failed: {error}; the process runs: {broker.running}")
    finally:
        await asyncio.to_thread(broker.kill)
    report.faults += [f"answer {each}" for each in report.answers if " 500" in each]
    report.faults += _warnings(log.read_text())
    return report.as_json()


async def _kill_and_start(broker: BrokerProcess, of_clients: Topics, report: Report) -> None:
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start, START_SECONDS_MAX)
    report.start_seconds.append(broker.start_seconds)
    await of_clients.check_start()


def _warnings(log: str) -> list[str]:
    """Return the kinds of warnings and errors in a log, each with its number of occurrences."""
    found: Counter[str] = Counter()
    for line in log.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            found[f"text in the log: {line[:200]}"] += 1
            continue
        if entry.get("level") in {"warning", "error", "critical"}:
            found[f"{entry['level']}: {entry.get('event')}: {entry.get('reason', '')}"[:300]] += 1
    return [f"{count} times {what}" for what, count in found.most_common(20)]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-topics-") as folder:
        report = asyncio.run(run(Path(folder) / "data", arguments.topics))
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return int(bool(report["faults"]))


if __name__ == "__main__":
    sys.exit(main())
