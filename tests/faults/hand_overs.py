"""Hands a topic over between two clusters under load, and kills brokers during hand-overs; each record is stored once.

`python hand_overs.py --hand-overs 100 --seed 1` runs two clusters, each with a link to the other. Idempotent producers
write numbered records, each with one request at a time; a producer repeats an unanswered or refused batch, in the other
cluster if its topic has moved. Each round promotes the mirror by a planned hand-over, and makes the former source the
mirror of the promoted topic. In every second round, the broker of the source, of the target, or both are killed at a
random moment and started again. In the other rounds, the time without an acknowledged record is measured.

At the end, both copies of each partition must be equal, and have every acknowledged record once and in order. The
program prints a JSON report, and exits with 1 if a record is missing, repeated or out of order, or if writes stopped
for longer than two seconds in a round without a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

sys.path.extend(str(Path(__file__).parents[1] / folder) for folder in ("plugins", "plugins/programs"))

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError

from broker_process import BrokerProcess
from fairlead import Admin
from fairlead.errors import FairleadError
from fairlead_api.batch.batches import ProducerStamp, decode_records, encode, record_batch
from fairlead_api.batch.header import iterate_headers
from fairlead_api.bodies.links import CreateLinkRequest, LinkSource, NamePatterns
from waiting import pause

TOPIC: Final = "orders"
PARTITIONS: Final = 4
BATCHES: Final = {"content-type": "application/vnd.fairlead.batches"}
TIME_US: Final = 1_700_000_000_000_000
WRITES_STOP_SECONDS_MAX: Final = 2.0
AGAIN_SECONDS: Final = 0.02
"""Pause of a producer or an operator before a refused or unanswered call is repeated."""
ALIVE_SECONDS: Final = (0.2, 0.8)
"""Seconds of load before each hand-over."""
KILL_SECONDS: Final = (0.0, 0.6)
"""Seconds between the start of a hand-over and a kill."""
ROUND_SECONDS_MAX: Final = 90.0
"""Time limit for each wait of a round, which includes starts of brokers on a loaded machine."""
Kills: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Side:
    """A cluster of one broker. `link` is the name of its link to the other cluster."""

    link: str
    broker: BrokerProcess

    async def start(self) -> None:
        """Start the broker; later starts use the address of the first start."""
        await asyncio.to_thread(self.broker.start)
        self.broker.listeners = (self.url.removeprefix("http://"), "127.0.0.1:0", "127.0.0.1:0")

    @property
    def url(self) -> str:
        """Address of the data listener."""
        return self.broker.url


@dataclass(slots=True)
class Producer:
    """The only producer of a partition: it remembers its acknowledged values and when the last one was acknowledged."""

    partition: int
    sides: tuple[Side, Side]
    rng: random.Random
    stamp: ProducerStamp
    side: int = 0
    number: int = 0
    acknowledged: list[str] = field(default_factory=list)
    acknowledged_at: float = 0.0
    gap_seconds: float = 0.0
    """Longest time between two acknowledgements since this value was last set to zero."""
    repeated: int = 0
    moves: int = 0

    async def run(self, client: Client, ends: asyncio.Event) -> None:
        """Write batches until `ends` is set."""
        self.acknowledged_at = time.monotonic()
        while not ends.is_set():
            count = self.rng.choice((1, 1, 3, 20))
            values = [f"{self.partition}.{self.number + index}" for index in range(count)]
            columns = record_batch([value.encode() for value in values], default_timestamp_us=TIME_US)
            body = encode(columns, producer=self.stamp).to_bytes()
            self.repeated += await self._acknowledged(client, body)
            self.number += count
            self.acknowledged += values
            self.stamp = ProducerStamp(
                self.stamp.producer_id, self.stamp.producer_epoch, self.stamp.base_sequence + count
            )
            now = time.monotonic()
            self.gap_seconds = max(self.gap_seconds, now - self.acknowledged_at)
            self.acknowledged_at = now

    async def _acknowledged(self, client: Client, body: bytes) -> bool:
        """Send a batch until it is acknowledged; return whether an earlier attempt had stored it."""
        while True:
            url = (
                f"{self.sides[self.side].url}/v1/topics/{TOPIC}/partitions/{self.partition}/records?acks=all"
            )
            try:
                answer = await client.post(url).headers(BATCHES).body_bytes(body).build().send()
                content = await answer.json()
            except PyreqwestError:
                await pause(AGAIN_SECONDS)
                continue
            if answer.status == 200:
                return bool(content["duplicate"])
            if content["code"] in ("topic_moved", "topic_is_mirror"):
                self.side = 1 - self.side
                self.moves += 1
            else:
                assert content["kind"] != "fix_request", content
            await pause(AGAIN_SECONDS)


@dataclass(slots=True)
class Report:
    """Counts of one run."""

    seed: int
    hand_overs: int = 0
    kills: dict[str, int] = field(default_factory=lambda: {"source": 0, "target": 0, "both": 0})
    stops: list[float] = field(default_factory=list)
    """Longest time in seconds without an acknowledgement in any partition, for each round without a kill."""
    stops_with_kills: list[float] = field(default_factory=list)
    records: int = 0
    acknowledged: int = 0
    repeats_recognised: int = 0
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the report for the record of the proof."""
        return {
            "seed": self.seed,
            "hand_overs": self.hand_overs,
            "kills": self.kills,
            "writes_stopped_seconds": {**_summary(self.stops), "bound": WRITES_STOP_SECONDS_MAX},
            "writes_stopped_seconds_with_kills": _summary(self.stops_with_kills),
            "acknowledged_records": self.acknowledged,
            "stored_records": self.records,
            "repeats_recognised": self.repeats_recognised,
            "problems": self.problems[:20],
        }


def _summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds) or [0.0]
    return {"median": round(ordered[len(ordered) // 2], 3), "longest": round(ordered[-1], 3)}


async def _until_done(what: str, call: Callable[[], Awaitable[bool]]) -> None:
    """Repeat a call to brokers that may be killed until it succeeds and returns true."""
    try:
        async with asyncio.timeout(ROUND_SECONDS_MAX):
            while True:
                try:
                    if await call():
                        return
                except FairleadError:
                    pass
                await pause(AGAIN_SECONDS)
    except TimeoutError:
        raise AssertionError(what) from None


async def _create_link(side: Side, source: Side) -> None:
    request = CreateLinkRequest(
        name=side.link,
        source=LinkSource(bootstrap=[source.url]),
        topics=NamePatterns(include=[TOPIC]),
        groups=NamePatterns(include=["*"]),
    )

    async def created() -> bool:
        async with Admin(side.url) as admin:
            await admin.create_link(request)
        return True

    await _until_done(f"link {side.link} is not created", created)


async def _state(side: Side) -> str | None:
    async with Admin(side.url) as admin:
        found = await admin.link_topics(side.link)
    return next((each.state for each in found if each.topic == TOPIC), None)


async def _is_copied(side: Side) -> bool:
    """Return whether the mirror is nearly complete, as an operator requires before a planned hand-over."""
    async with Admin(side.url) as admin:
        found = await admin.link_topics(side.link)
    return any(
        each.topic == TOPIC
        and each.state == "mirroring"
        and len(each.partitions) == PARTITIONS
        and each.lag_seconds is not None
        and each.lag_seconds < 1
        for each in found
    )


async def _hand_over(source: Side, target: Side, kills: Kills | None) -> None:
    """Promote the mirror of the target, and make the source its mirror; kill brokers if `kills` is given."""

    async def begun() -> bool:
        async with Admin(target.url) as admin:
            state = await _state(target)
            if state == "mirroring":
                await admin.promote_link(target.link, [TOPIC])
        return state != "mirroring"

    async def promoted() -> bool:
        return await _state(target) in (None, "promoted")

    async def adopted() -> bool:
        async with Admin(source.url) as admin:
            await admin.adopt_link(source.link, [TOPIC])
        return True

    killing = asyncio.create_task(kills()) if kills is not None else None
    await _until_done("the hand-over does not begin", begun)
    await _until_done("the mirror is not promoted", promoted)
    if killing is not None:
        await killing
    await _until_done("the former source is not a mirror", adopted)


def _kills(source: Side, target: Side, rng: random.Random, report: Report) -> Kills:
    """Return a function that kills brokers at a random moment of a hand-over, and starts them again."""
    name = rng.choice(list(report.kills))
    report.kills[name] += 1
    victims = {"source": (source,), "target": (target,), "both": (source, target)}[name]
    return partial(_kill, victims, rng.uniform(*KILL_SECONDS))


async def _kill(sides: tuple[Side, ...], after_seconds: float) -> None:
    await pause(after_seconds)
    for side in sides:
        await asyncio.to_thread(side.broker.kill)
    for side in sides:
        await side.start()


async def _read(client: Client, side: Side, partition: int) -> list[tuple[int, str]]:
    """Return offset and value of every record of a partition."""
    base, records = f"{side.url}/v1/topics/{TOPIC}/partitions/{partition}", list[tuple[int, str]]()
    offsets = await (await client.get(f"{base}/offsets").build().send()).json()
    at, end = offsets["log_start_offset"], offsets["high_watermark"]
    while at < end:
        request = client.get(f"{base}/records?offset={at}&max_wait_ms=0").header(
            "accept", BATCHES["content-type"]
        )
        data = bytes(await (await request.build().send()).bytes())
        found = [
            (record.offset, (record.value or b"").decode())
            for position, header in iterate_headers(data)
            for record in decode_records(data[position : position + header.total_bytes])
            if record.offset >= at
        ]
        records += found
        at = found[-1][0] + 1
    return records


async def _judge(client: Client, sides: tuple[Side, Side], producers: list[Producer], report: Report) -> None:
    """Compare both copies of each partition with the acknowledged records."""
    for producer in producers:
        partition = producer.partition
        leading = sides[producer.side]
        stored = await _read(client, leading, partition)

        async def is_equal(stored: list[tuple[int, str]] = stored, partition: int = partition) -> bool:
            return all([await _read(client, side, partition) == stored for side in sides])

        try:
            await _until_done("", is_equal)
        except AssertionError:
            report.problems.append(f"the copies of partition {partition} differ")
        values = [value for _, value in stored]
        report.records += len(values)
        report.acknowledged += len(producer.acknowledged)
        report.repeats_recognised += producer.repeated
        if values != producer.acknowledged:
            missing = set(producer.acknowledged) - set(values)
            twice = len(values) - len(set(values))
            report.problems.append(
                f"partition {partition}: {len(missing)} records missing, {twice} records twice, "
                f"{len(values)} stored, {len(producer.acknowledged)} acknowledged"
            )


@asynccontextmanager
async def _clusters(folder: Path) -> AsyncIterator[tuple[Side, Side]]:
    sides = tuple(Side(f"to-{name}", BrokerProcess(folder / name)) for name in ("east", "west"))
    try:
        for side in sides:
            await side.start()
        yield sides[0], sides[1]
    finally:
        for side in sides:
            await asyncio.to_thread(side.broker.kill)


async def _producers(client: Client, sides: tuple[Side, Side], rng: random.Random) -> list[Producer]:
    made = []
    for partition in range(PARTITIONS):
        found = await (await client.post(f"{sides[0].url}/v1/producers").body_json({}).build().send()).json()
        stamp = ProducerStamp(found["producer_id"], found["producer_epoch"], 0)
        made.append(Producer(partition, sides, random.Random(rng.random()), stamp))
    return made


async def _round(
    number: int, sides: tuple[Side, Side], producers: list[Producer], rng: random.Random, report: Report
) -> None:
    """Hand the topic over once, in one direction in even rounds and in the other direction in odd rounds."""
    source, target = sides if number % 2 == 0 else sides[::-1]
    await _until_done("the mirror does not reach its source", lambda: _is_copied(target))
    await pause(rng.uniform(*ALIVE_SECONDS))
    for producer in producers:
        producer.gap_seconds = 0.0
    is_killed = number % 4 in (1, 2)
    kills = _kills(source, target, rng, report) if is_killed else None
    before = [len(producer.acknowledged) for producer in producers]
    await _hand_over(source, target, kills)
    wanted = sides.index(target)

    async def writes() -> bool:
        return all(
            producer.side == wanted and len(producer.acknowledged) > count
            for producer, count in zip(producers, before, strict=True)
        )

    await _until_done("the producers do not write to the promoted topic", writes)
    stops = report.stops_with_kills if is_killed else report.stops
    stops.append(max(producer.gap_seconds for producer in producers))
    report.hand_overs += 1


async def prove(folder: Path, hand_overs: int, seed: int, *, progress: bool = False) -> dict[str, Any]:
    """Hand the topic over many times under load; return the report."""
    rng, report, ends = random.Random(seed), Report(seed), asyncio.Event()
    async with (
        _clusters(folder) as sides,
        ClientBuilder().http2_prior_knowledge().build() as client,
    ):
        body = {"name": TOPIC, "partitions": PARTITIONS}
        answer = await client.post(f"{sides[0].url}/v1/topics").body_json(body).build().send()
        assert answer.status == 201, await answer.text()
        await _create_link(sides[1], sides[0])
        await _create_link(sides[0], sides[1])
        producers = await _producers(client, sides, rng)
        async with asyncio.TaskGroup() as load:
            for producer in producers:
                load.create_task(producer.run(client, ends))
            try:
                for number in range(hand_overs):
                    await _round(number, sides, producers, rng, report)
                    if progress:
                        sys.stderr.write(f"\r{number + 1} of {hand_overs} hand-overs, {report.kills} killed")
            finally:
                ends.set()
        await _judge(client, sides, producers, report)
    return report.as_json()


def is_proved(report: dict[str, Any]) -> bool:
    """Return whether no record was missing or repeated, and writes stopped briefly."""
    return not report["problems"] and report["writes_stopped_seconds"]["longest"] <= WRITES_STOP_SECONDS_MAX


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hand-overs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-hand-overs-") as folder:
        report = asyncio.run(
            prove(Path(folder), arguments.hand_overs, arguments.seed, progress=sys.stderr.isatty())
        )
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return int(not is_proved(report))


if __name__ == "__main__":
    sys.exit(main())
