"""Sends mutated requests of every Kafka API and version to a broker process, and checks that the broker stays up.

`python kafka_wire_mutations.py --inputs 5000000 --seed 1` starts `fairlead broker start` with a Kafka listener, and
sends mutated requests on many connections. Requests that may have no answer for a long time, and requests with mutated
headers, have connections of their own. Between them, valid records are stored over HTTP, and they are read back at the
end.

The program prints a JSON report, and its progress each minute. The program exits with 1 if the process of the broker
ended, a request that can be decoded has no answer, an answer cannot be decoded, the broker logged an error, a valid
record was refused or lost, or the process used more memory than the bound. `--seconds` ends the run early without
making the run a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

sys.path.extend(
    str(Path(__file__).parents[1] / folder) for folder in ("plugins", "plugins/programs", "faults")
)

import uvloop

from attacked_broker import MEMORY_FOLDER, AttackedBroker
from fairlead_broker.kafka.protocol.apis import Api, ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError
from fairlead_broker.kafka.protocol.messages import MESSAGES, UndecodableError, decode_request, is_flexible
from kafka_inputs import SERVED, Known, Requests, framed, mutated
from request_mutations import TOPIC
from wire_connections import BadAnswerError

REQUESTS: Final = "requests"
WAITING: Final = "requests that may wait"
HEADERS: Final = "requests with mutated headers"
WORKERS: Final = {REQUESTS: 24, WAITING: 12, HEADERS: 4}
"""Number of connections for each kind of input."""
PIPELINED: Final = 10
"""Number of requests that a connection has in flight, as many as the broker executes at once."""
MUTANTS_A_REQUEST: Final = 50
UNDECODABLE_SENT: Final = 0.05
"""Share of the requests that cannot be decoded that are sent. Each of them ends its connection, and a new connection
takes as long as several requests."""
ANSWER_SECONDS: Final = 120.0
"""Time limit for the answers to the requests in flight, on a busy machine."""
PATIENCE_SECONDS: Final = 0.1
"""Time after which a connection whose request may wait for other clients is closed."""
WAITING_APIS: Final = frozenset(
    {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
"""APIs whose answers wait for other members of a group, or may be the last of a connection."""
NAMES: Final = (TOPIC, "retention.ms", "range", "consumer", "1")
DAY_SECONDS: Final = 86_400.0
_SIZE_AND_CORRELATION: Final = struct.Struct(">ii")


class Sent(NamedTuple):
    """A mutated request."""

    api: Api
    version: int
    body: bytes
    decodes: bool
    waits: bool
    """Whether the request may have no answer for a long time, or be the last of its connection."""


@dataclass(slots=True)
class Counts:
    """Counts of inputs and answers."""

    inputs: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Answers by the error code of the whole answer, and closed connections."""
    slowest_seconds: float = 0.0
    slowest_api: str = ""


@dataclass(slots=True)
class Attacker:
    """Sends inputs from one seed until `over` returns True."""

    address: tuple[str, int]
    counts: Counts
    seed: str
    topic_id: UUID
    over: Callable[[], bool]
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    # ------------------------------------------------------------------------------------------ requests

    async def requests(self, kind: str) -> None:
        """Send mutated requests of a kind: pipelined, or one at a time if they may wait.

        A connection ends with a request after which the broker closes it, or which waits.
        """
        waits = kind is WAITING
        source = self._mutants(waits=waits)
        while not self.over():
            async with self._connection() as (reader, writer):
                stays_open = True
                while stays_open and not self.over():
                    sent = [next(source)]
                    while len(sent) < PIPELINED and sent[-1].decodes and not waits:
                        sent.append(next(source))
                    writer.write(b"".join(framed(*each[:3], number) for number, each in enumerate(sent)))
                    stays_open = await self._answers(kind, reader, sent)

    def _mutants(self, *, waits: bool) -> Iterator[Sent]:
        """Yield mutated requests of all APIs and versions in turn, which may wait for their answers or do not."""
        # A deleted topic would leave the other requests without their topic.
        destructive = Requests(self.chance)
        others = Requests(self.chance, Known(NAMES, (self.topic_id,)))
        served = [each for each in SERVED if may_wait(each[0]) or not waits]
        at = self.chance.randrange(len(served))
        while True:
            api, version = served[at % len(served)]
            at += 1
            source = destructive if api.key is ApiKey.DELETE_TOPICS else others
            body = source.body(api, version)
            for _ in range(MUTANTS_A_REQUEST):
                mutant = mutated(body, self.chance)
                try:
                    request = decode_request(api, version, memoryview(mutant))
                except UndecodableError:
                    if self.chance.random() < UNDECODABLE_SENT:
                        yield Sent(api, version, mutant, decodes=False, waits=False)
                else:
                    found = may_wait(api) and (api.key is not ApiKey.PRODUCE or request.acks == 0)
                    if found is waits:
                        yield Sent(api, version, mutant, decodes=True, waits=waits)

    async def _answers(self, kind: str, reader: asyncio.StreamReader, sent: list[Sent]) -> bool:
        """Read and check the answers; return whether the connection is still open."""
        begun = time.perf_counter()
        for number, each in enumerate(sent):
            try:
                async with asyncio.timeout(PATIENCE_SECONDS if each.waits else ANSWER_SECONDS):
                    answer = await self._answer(reader, number)
            except TimeoutError:
                if not each.waits:
                    message = f"no answer within {ANSWER_SECONDS} s to {described(each)}"
                    raise BadAnswerError(message) from None
                self._count(kind, "no answer in time")
                return False
            if answer is None:
                if each.decodes and not each.waits:
                    message = f"the broker closed the connection without an answer to {described(each)}"
                    raise BadAnswerError(message)
                self._count(kind, "connection closed")
                return False
            if not each.decodes:
                message = f"an answer to {described(each)}, which cannot be decoded"
                raise BadAnswerError(message)
            self._count(kind, self._error(each, answer))
            took = time.perf_counter() - begun
            if took > self.counts.slowest_seconds:
                self.counts.slowest_seconds, self.counts.slowest_api = took, f"{each.api.name} {each.version}"
        return True

    async def _answer(self, reader: asyncio.StreamReader, number: int) -> bytes | None:
        """Return the next answer without its header; None if the connection was closed."""
        try:
            size, correlation_id = _SIZE_AND_CORRELATION.unpack(await reader.readexactly(8))
            answer = await reader.readexactly(size - 4)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        assert correlation_id == number, "answers have the order of the requests"
        return answer

    def _error(self, sent: Sent, answer: bytes) -> str:
        """Return the name of the error of a whole answer; raise `BadAnswerError` for an answer that is wrong."""
        tagged = is_flexible(sent.api, sent.version) and sent.api.key is not ApiKey.API_VERSIONS
        try:
            found = MESSAGES[sent.api.key][1].decode(
                memoryview(answer)[1 if tagged else 0 :], version=sent.version
            )
        except Exception as error:
            message = f"an answer that cannot be decoded to {described(sent)}: {answer.hex()}"
            raise BadAnswerError(message) from error
        error = KafkaError(getattr(found, "error_code", None) or 0)
        if error is KafkaError.UNKNOWN_SERVER_ERROR:
            message = f"an unknown error for {described(sent)}"
            raise BadAnswerError(message)
        return error.name

    def _count(self, kind: str, outcome: str) -> None:
        self.counts.inputs[kind] += 1
        self.counts.errors[outcome] += 1

    # ------------------------------------------------------------------------------------------ headers

    async def headers(self) -> None:
        """Send requests whose size and header are mutated, each on a connection of its own."""
        source = Requests(self.chance)
        while not self.over():
            api, version = self.chance.choice(SERVED)
            data = framed(api, version, source.body(api, version), 0)
            start = mutated(data[:16], self.chance)
            async with self._connection() as (reader, writer):
                writer.write(start + data[16:])
                with suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await reader.read(1 << 16)
            self.counts.inputs[HEADERS] += 1

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


def may_wait(api: Api) -> bool:
    """Return whether a request of an API may have no answer for a long time, or be the last of its connection."""
    return api.key in WAITING_APIS or api.key is ApiKey.PRODUCE


def described(sent: Sent) -> str:
    """Return a text by which a request can be sent again."""
    return f"{sent.api.name} {sent.version}: {sent.body.hex()}"


class Run:
    """One attack on a broker over Kafka's protocol."""

    def __init__(self, folder: Path, inputs: int, seconds: float | None, seed: int) -> None:
        self.counts = Counts()
        self.broker = AttackedBroker(folder, "--kafka-listen", "127.0.0.1:0")
        self._inputs, self._seed = inputs, seed
        self._seconds = seconds or DAY_SECONDS

    def over(self) -> bool:
        """Return whether no further input is sent."""
        return (
            self.counts.inputs.total() >= self._inputs
            or time.monotonic() - self.broker.begun >= self._seconds
            or bool(self.broker.failures)
        )

    async def attack(self) -> None:
        """Send all inputs while valid records are stored."""
        topic_id = UUID(await self.broker.create_topics())
        host, _, port = self.broker.process.kafka.rpartition(":")
        tasks = [self.broker.guarded(self.broker.watch(self.over, self.counts.inputs.total), "watch")]
        for kind, workers in WORKERS.items():
            for number in range(workers):
                seed = f"{self._seed}.{kind}.{number}"
                attacker = Attacker((host, int(port)), self.counts, seed, topic_id, self.over)
                work = attacker.headers() if kind is HEADERS else attacker.requests(kind)
                tasks.append(self.broker.guarded(work, seed))
        await asyncio.gather(*tasks)

    def report(self, log: str, *, exits: int) -> dict[str, Any]:
        """Return the report of a run. `log`: everything that the broker logged."""
        counts, inputs = self.counts, self.counts.inputs.total()
        self.broker.failures += [line for line in log.splitlines() if "[error" in line or '"error"' in line]
        return {
            "seed": self._seed,
            "apis": len({api.key for api, _ in SERVED}),
            "versions": len(SERVED),
            "inputs_wanted": self._inputs,
            "inputs": inputs,
            "inputs_a_second": round(inputs / (time.monotonic() - self.broker.begun)),
            "inputs_by_kind": dict(sorted(counts.inputs.items())),
            "answers_by_error": dict(counts.errors.most_common()),
            "slowest_answer_ms": round(counts.slowest_seconds * 1e3),
            "slowest_answer_of": counts.slowest_api,
            "broker_exits": exits,
            **self.broker.report(),
        }


def run(inputs: int, seconds: float | None, seed: int) -> dict[str, Any]:
    """Send the inputs and return the report. After a failure, the files of the broker are kept."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-kafka-wire-", dir=MEMORY_FOLDER))
    found = Run(folder, inputs, seconds, seed)
    found.broker.process.start()
    try:
        uvloop.run(found.attack())
        exits = int(not found.broker.process.running)
    finally:
        found.broker.process.kill()
    report = found.report((folder / "data.log").read_text(), exits=exits)
    if exits or found.broker.failures:
        return {**report, "folder": str(folder)}
    shutil.rmtree(folder)
    return report


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, help="time after which no input is sent")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    report = run(arguments.inputs, arguments.seconds, arguments.seed)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return int(
        bool(report["failures"] or report["broker_exits"])
        or (arguments.seconds is None and report["inputs"] < arguments.inputs)
    )


if __name__ == "__main__":
    sys.exit(main())
