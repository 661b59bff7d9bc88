"""Kills a broker under load many times, and compares the answers to its clients with the stored records.

Several clients produce to a real `fairlead broker start` with acks=all, with one partition and one request at a time
for each client. SIGKILL is sent at a random moment, mostly while requests are unanswered. The broker is started again
on the same data and must be ready in time. Half of the clients are idempotent and repeat an unanswered batch until it
is acknowledged; the batch must be stored exactly once. Clients without idempotence continue with the next batch, so
their unanswered batches may be stored once or not at all. All answers form a history for `history_checker.py`.

`python killed_brokers.py --kills 100 --ballast-bytes 1073741824` prints a JSON report and exits with 1 when a record
was lost, repeated or out of order, or a start took too long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).parents[1] / folder) for folder in ("plugins", "plugins/programs", "checker")
)

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from broker_process import BrokerProcess
from fairlead_api.batch.batches import ProducerStamp, decode_records, encode, record_batch
from fairlead_api.batch.header import iterate_headers
from history_checker import check

TOPIC: Final = "kills"
BALLAST: Final = "ballast"
PARTITIONS: Final = 6
BATCHES: Final = {"content-type": "application/vnd.fairlead.batches"}
ALIVE_SECONDS: Final = (0.05, 0.6)
"""Seconds of load before each kill."""
START_SECONDS_MAX: Final = 2.0
BALLAST_BATCH_BYTES: Final = 4 << 20
BALLAST_PARTITIONS: Final = 4
TIME_US: Final = 1_700_000_000_000_000


@dataclass(slots=True)
class Report:
    """The counts of one run."""

    kills: int = 0
    kills_with_unanswered_requests: int = 0
    unanswered_requests: int = 0
    repeated_requests_acknowledged: int = 0
    ballast_bytes: int = 0
    empty_start_seconds: float = 0.0
    """Duration of a start without any log: interpreter, imports, listeners."""
    start_seconds: list[float] = field(default_factory=list)
    history: dict[str, Any] = field(default_factory=dict)
    anomalies: dict[str, list[str]] = field(default_factory=dict)
    verdict: str = "unknown"

    def as_json(self) -> dict[str, Any]:
        """Return the report with a summary of the starts."""
        starts = sorted(self.start_seconds)
        return {
            "kills": self.kills,
            "kills_with_unanswered_requests": self.kills_with_unanswered_requests,
            "unanswered_requests": self.unanswered_requests,
            "repeated_requests_acknowledged": self.repeated_requests_acknowledged,
            "ballast_bytes": self.ballast_bytes,
            "start_seconds": {
                "without_a_log": round(self.empty_start_seconds, 3),
                "median": round(starts[len(starts) // 2], 3),
                "longest": round(starts[-1], 3),
                "bound": START_SECONDS_MAX,
            },
            "history": self.history,
            "anomalies": self.anomalies,
            "verdict": self.verdict,
        }


class Producers:
    """Clients that produce as long as a broker runs, and record its answers."""

    def __init__(self, rng: random.Random, report: Report) -> None:
        self.events: list[dict[str, Any]] = []
        self._rng = rng
        self._report = report
        self._numbers = 0
        self._in_flight = 0
        self._idempotent: dict[int, ProducerStamp] = {}
        self._unanswered: dict[int, tuple[int, bytes, int]] = {}

    @property
    def in_flight(self) -> int:
        """Number of requests without an answer."""
        return self._in_flight

    async def run(self, client: Client, url: str) -> None:
        """Produce to every partition until the broker is killed."""
        await asyncio.gather(*(self._produce(client, url, partition) for partition in range(PARTITIONS)))

    async def _produce(self, client: Client, url: str, partition: int) -> None:
        path = f"{url}/v1/topics/{TOPIC}/partitions/{partition}/records?acks=all"
        idempotent = partition % 2 == 0
        try:
            if idempotent and partition not in self._idempotent:
                self._idempotent[partition] = await _new_producer(client, url)
            while True:
                left = self._unanswered
                request, body, count = left.pop(partition) if partition in left else self._next(partition)
                repeated = await self._send(client, path, partition, request, body, count)
                self._report.repeated_requests_acknowledged += repeated
        except PyreqwestError:
            return

    def _next(self, partition: int) -> tuple[int, bytes, int]:
        """Return a request that has not been sent yet, and record its start."""
        self._numbers += 1
        request, count = self._numbers, self._rng.choice((1, 1, 3, 20))
        values = [f"{partition}:{request}.{index}" for index in range(count)]
        padding = self._rng.choice((0, 0, 100, 5000))
        stamp = self._idempotent.get(partition)
        columns = record_batch(
            [f"{value} {'x' * padding}".encode() for value in values], default_timestamp_us=TIME_US
        )
        body = encode(columns, producer=stamp).to_bytes()
        if stamp is not None:
            sequence = stamp.base_sequence + count
            self._idempotent[partition] = ProducerStamp(stamp.producer_id, stamp.producer_epoch, sequence)
        key = f"{TOPIC}-{partition}"
        self.events.append(
            {
                "op": "send",
                "type": "invoke",
                "process": partition,
                "id": request,
                "key": key,
                "values": values,
            }
        )
        return request, body, count

    async def _send(
        self, client: Client, path: str, partition: int, request: int, body: bytes, count: int
    ) -> bool:
        """Send a request once; return whether the request repeated an earlier request and is stored now."""
        self._in_flight += 1
        try:
            answer = await client.post(path).headers(BATCHES).body_bytes(body).build().send()
            content = await answer.json()
        except PyreqwestError:
            self._report.unanswered_requests += 1
            if partition in self._idempotent:
                self._unanswered[partition] = (request, body, count)
            else:
                self._note(request, partition, "info")
            raise
        finally:
            self._in_flight -= 1
        assert answer.status == 200, content
        self._note(request, partition, "ok", offset=content["base_offset"])
        return bool(content["duplicate"])

    def _note(self, request: int, partition: int, kind: str, **more: object) -> None:
        self.events.append({"op": "send", "type": kind, "process": partition, "id": request, **more})

    async def repeat_unanswered(self, client: Client, url: str) -> None:
        """Repeat the unanswered requests, so that every idempotent request has its answer."""
        for partition, (request, body, count) in list(self._unanswered.items()):
            path = f"{url}/v1/topics/{TOPIC}/partitions/{partition}/records?acks=all"
            self._report.repeated_requests_acknowledged += await self._send(
                client, path, partition, request, body, count
            )


async def _new_producer(client: Client, url: str) -> ProducerStamp:
    answer = await client.post(f"{url}/v1/producers").body_json({}).build().send()
    made = await answer.json()
    return ProducerStamp(made["producer_id"], made["producer_epoch"], 0)


@asynccontextmanager
async def _client() -> AsyncIterator[Client]:
    async with ClientBuilder().http2_prior_knowledge().build() as client:
        yield client


async def _create(url: str, name: str, partitions: int) -> None:
    async with _client() as client:
        body = {"name": name, "partitions": partitions}
        answer = await client.post(f"{url}/v1/topics").body_json(body).build().send()
        assert answer.status == 201, await answer.text()


async def _load(url: str, nbytes: int) -> None:
    """Fill a topic with `nbytes` bytes."""
    values = [bytes([65 + index % 26]) * 1000 for index in range(BALLAST_BATCH_BYTES // 1040)]
    body = encode(record_batch(values, default_timestamp_us=TIME_US)).to_bytes()
    await _create(url, BALLAST, BALLAST_PARTITIONS)
    async with _client() as client:
        for number in range(-(-nbytes // len(body))):
            path = f"{url}/v1/topics/{BALLAST}/partitions/{number % BALLAST_PARTITIONS}/records"
            answer = await client.post(path).headers(BATCHES).body_bytes(body).build().send()
            assert answer.status == 200, await answer.text()


async def _read_all(url: str) -> list[dict[str, Any]]:
    """Read every partition from its first offset to its end."""
    events: list[dict[str, Any]] = []
    ends = {}
    async with _client() as client:
        for partition in range(PARTITIONS):
            base = f"{url}/v1/topics/{TOPIC}/partitions/{partition}"
            offsets = await (await client.get(f"{base}/offsets").build().send()).json()
            key, at, end = f"{TOPIC}-{partition}", offsets["log_start_offset"], offsets["high_watermark"]
            ends[key] = end
            while at < end:
                request = client.get(f"{base}/records?offset={at}&max_wait_ms=0").header(
                    "accept", BATCHES["content-type"]
                )
                answer = await request.build().send()
                assert answer.status == 200, await answer.text()
                data = bytes(await answer.bytes())
                found = [
                    record
                    for position, header in iterate_headers(data)
                    for record in decode_records(data[position : position + header.total_bytes])
                    if record.offset >= at
                ]
                records = [[each.offset, (each.value or b"").decode().split(" ")[0]] for each in found]
                events.append({"op": "poll", "type": "ok", "process": -1, "key": key, "records": records})
                at = found[-1].offset + 1
    events.append({"op": "end", "keys": ends})
    return events


async def run(
    data: Path, kills: int, seed: int, *, ballast_bytes: int = 0, progress: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Kill the broker `kills` times; return the report and the history."""
    rng, report = random.Random(seed), Report(ballast_bytes=ballast_bytes)
    broker, producers = BrokerProcess(data), Producers(rng, report)
    broker.start()
    broker.stop()
    broker.start()
    report.empty_start_seconds = broker.start_seconds
    try:
        await _create(broker.url, TOPIC, PARTITIONS)
        if ballast_bytes:
            await _load(broker.url, ballast_bytes)
        for number in range(kills):
            await _live_and_die(broker, producers, rng, report)
            if progress:
                sys.stderr.write(f"\r{number + 1} of {kills} kills, {report.unanswered_requests} unanswered")
        async with _client() as client:
            await producers.repeat_unanswered(client, broker.url)
        producers.events += await _read_all(broker.url)
    finally:
        broker.kill()
    judged = check(producers.events)
    report.verdict, report.anomalies = judged.verdict, judged.anomalies
    report.history = {
        "sends": judged.sends,
        "acknowledged": judged.acknowledged,
        "unanswered_not_repeated": judged.unanswered,
        "of_these_stored": judged.unanswered_stored,
        "records_read": judged.values_read,
    }
    return report.as_json(), producers.events


async def _live_and_die(
    broker: BrokerProcess, producers: Producers, rng: random.Random, report: Report
) -> None:
    async with _client() as client:
        producing = asyncio.create_task(producers.run(client, broker.url))
        done, _ = await asyncio.wait([producing], timeout=rng.uniform(*ALIVE_SECONDS))
        assert not done, f"the producers ended while the broker lived: {producing.exception()!r}"
        report.kills_with_unanswered_requests += producers.in_flight > 0
        await asyncio.to_thread(broker.kill)
        report.kills += 1
        await producing
    await asyncio.to_thread(broker.start)
    report.start_seconds.append(broker.start_seconds)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ballast-bytes", type=int, default=0)
    parser.add_argument("--history", type=Path, help="where to leave the history")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-kills-") as folder:
        report, history = asyncio.run(
            run(
                Path(folder) / "data",
                arguments.kills,
                arguments.seed,
                ballast_bytes=arguments.ballast_bytes,
                progress=sys.stderr.isatty(),
            )
        )
    if arguments.history:
        arguments.history.write_text("".join(json.dumps(event) + "\n" for event in history))
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    slow = report["start_seconds"]["longest"] > START_SECONDS_MAX
    return int(report["verdict"] != "valid" or slow)


if __name__ == "__main__":
    sys.exit(main())
