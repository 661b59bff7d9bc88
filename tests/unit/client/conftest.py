"""Fixtures for the tests of the client: batches, cached metadata and a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias
from urllib.parse import parse_qsl
from zlib import crc32

import msgspec
import pytest

from fairlead.connection.metadata import Picture
from fairlead.producing.accumulator import Accumulator
from fairlead.producing.pending_batch import PartitionQueue, RecordsBatch
from fairlead.settings import ProducerSettings
from fairlead_api.batch.batches import Record, decode_records, encode, record_batch
from fairlead_api.batch.header import BatchHeader, make_stamp, read_header
from fairlead_api.bodies.frames import encode_frame, iterate_frames
from fairlead_api.bodies.media_types import FRAMES, PROBLEM
from fairlead_api.bodies.metadata import BrokerDescription, Metadata, PartitionMetadata, TopicMetadata
from fairlead_api.bodies.requests import FetchFrameMeta, FetchProblemMeta
from fairlead_api.problems import ProblemError
from fairlead_broker.server.connections.bound_socket import BoundSocket
from fairlead_broker.server.http.http2_listener import Http2Listener

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]

TOPIC_ID = "1b4e28ba-2fa1-4d19-883f-0016d3cca427"


@pytest.fixture
def settings() -> ProducerSettings:
    """Return producer settings whose limits are a few bytes."""
    return ProducerSettings(
        linger_seconds=0.005,
        batch_bytes=100,
        columnar_batch_bytes=100,
        buffer_bytes=1000,
        delivery_timeout_seconds=10.0,
        idempotence=False,
    )


@pytest.fixture
def accumulator(settings: ProducerSettings) -> Accumulator:
    """Return an empty accumulator."""
    return Accumulator(settings)


@pytest.fixture
def append(accumulator: Accumulator) -> Callable[..., RecordsBatch]:
    """Return a function that appends a record as the producer does, and opens a batch if the partition has none."""

    def append_record(queue: PartitionQueue, value: bytes = b"v", *, now: float = 0.0) -> RecordsBatch:
        """Append one record."""
        batch = queue.open or accumulator.open_batch(queue, now)
        batch.values.append(value)
        batch.times_ns.append((1_000_000 + len(batch.values)) * 1000)
        batch.nbytes += len(value)
        accumulator.room -= len(value)
        return batch

    return append_record


def topic_of(
    name: str, leaders: list[int | None], topic_id: str = TOPIC_ID, leader_epoch: int = 1
) -> TopicMetadata:
    """Return the metadata of a topic whose partitions have the given leaders."""
    partitions = [
        PartitionMetadata(
            partition=index,
            leader=leader,
            leader_epoch=leader_epoch,
            replicas=[1],
            isr=[1],
            elr=[],
            offline=[],
        )
        for index, leader in enumerate(leaders)
    ]
    return TopicMetadata(name=name, topic_id=topic_id, partitions=partitions)


@pytest.fixture
def picture() -> Callable[[list[int | None]], Picture]:
    """Return cached metadata of the topic `flights` and of brokers 1 and 2."""

    def take(leaders: list[int | None]) -> Picture:
        """Return cached metadata with the given leaders."""
        return Picture(
            cluster_id="c",
            addresses={1: "http://one:9520", 2: "http://two:9520"},
            topics={"flights": topic_of("flights", leaders)},
            asked=frozenset({"flights"}),
        )

    return take


@dataclass
class Received:
    """A request that the scripted broker received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def frames(self) -> list[tuple[str, int, list[Record]]]:
        """Return (topic id, partition, records) of each frame of a produce request."""
        return [(topic_id, partition, records) for topic_id, partition, _, records in self.batches()]

    def batches(self) -> list[tuple[str, int, BatchHeader, list[Record]]]:
        """Return (topic id, partition, header, records) of each frame of a produce request."""
        found = []
        for frame in iterate_frames(self.body):
            meta = msgspec.json.decode(frame.meta)
            header = read_header(frame.data)
            found.append((meta["topic_id"], meta["partition"], header, decode_records(frame.data)))
        return found

    def stamps(self) -> list[tuple[int, int, int]]:
        """Return (producer id, epoch, first sequence) of each batch of a produce request."""
        return [
            (header.producer_id, header.producer_epoch, header.base_sequence)
            for _, _, header, _ in self.batches()
        ]


@dataclass
class Remembered:
    """State of a producer in a partition: the epoch, the next sequence and the answers to recent batches."""

    epoch: int
    expected: int
    answers: dict[tuple[int, int], dict[str, object]]


Reply: TypeAlias = tuple[int, dict[str, str], bytes]
Script: TypeAlias = Callable[[Received], Awaitable[Reply | None]]


class ScriptedBroker:
    """A real HTTP/2 listener that follows a test's scripts, and otherwise stores batches and answers like a broker.

    A real broker cannot be made to fail on demand, and the tests check how the client handles failures. If a script
    returns None, the broker sends its default answer.
    """

    def __init__(self, partitions: int = 2) -> None:
        self._bound = BoundSocket("scripted", "127.0.0.1", 0)
        self._listener = Http2Listener(self._serve, self._bound, connections_max=64)
        self.url = f"http://{self._bound}"
        self.leaders: list[int | None] = [1] * partitions
        self.leader_epoch = 1
        self.addresses: dict[int, str | None] = {1: self.url}
        self.topic_id = TOPIC_ID
        self.topics = ["flights"]
        self.mirrors: set[str] = set()
        """Names of topics that a link writes."""
        self.requests: list[Received] = []
        self.scripts: dict[str, list[Script]] = {}
        self.logs: dict[int, list[Record]] = {}
        self.producers: dict[tuple[int, int], Remembered] = {}
        self.producer_ids = 0

    async def __aenter__(self) -> Self:
        await self._listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listener.stop(0.2)

    def script(self, path: str, *scripts: Script) -> None:
        """Answer the next calls to a path with the given functions, in order."""
        self.scripts.setdefault(path, []).extend(scripts)

    def refuse(self, path: str, *codes: str, **data: str) -> None:
        """Answer the next calls to a path with the given problems."""

        def refusal(code: str) -> Script:
            """Return a script that answers with one problem."""

            async def answer(_: Received) -> Reply:
                """Answer as scripted."""
                return problem_reply(code, **data)

            return answer

        self.script(path, *map(refusal, codes))

    def received(self, path: str) -> list[Received]:
        """Return the calls to a path so far."""
        return [request for request in self.requests if request.path == path]

    def values(self, partition: int) -> list[bytes | None]:
        """Return the values stored in a partition, in order."""
        return [record.value for record in self.logs.get(partition, [])]

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        received = Received(
            scope["method"],
            scope["path"],
            dict(parse_qsl(scope["query_string"].decode())),
            {name.decode(): value.decode() for name, value in scope["headers"]},
            body,
        )
        self.requests.append(received)
        waiting = self.scripts.get(received.path)
        reply = await waiting.pop(0)(received) if waiting else None
        if reply is None and received.path == "/v1/fetch":
            # There are no new records: delay the answer for a moment, as a broker does.
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.02)
            reply = 204, {}, b""
        status, headers, answer = reply or self._usual(received)
        names = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": names})
        await send({"type": "http.response.body", "body": answer})

    def _usual(self, received: Received) -> Reply:
        match received.path:
            case "/v1/metadata":
                return self._metadata(received)
            case "/v1/produce":
                return json_reply({"results": [self.accept(*batch) for batch in received.batches()]})
            case "/v1/producers":
                self.producer_ids += 1
                name = msgspec.json.decode(received.body)["name"]
                return json_reply({"producer_id": self.producer_ids, "producer_epoch": 0, "name": name})
            case "/v1/brokers/1/config":
                off = {"value": "false", "source": "default"}
                return json_reply({"config": {"auto.create.topics.enable": off}})
            case _:
                return problem_reply("route_not_found")

    def _metadata(self, received: Received) -> Reply:
        brokers = [BrokerDescription(id=id_, address=url) for id_, url in self.addresses.items()]
        asked = received.query["topics"].split(",") if "topics" in received.query else self.topics
        topics = [
            msgspec.structs.replace(
                topic_of(name, self.leaders, self.topic_id, self.leader_epoch),
                is_mirror=name in self.mirrors,
            )
            for name in self.topics
            if name in asked
        ]
        answer = Metadata(cluster_id="c", controller=1, brokers=brokers, topics=topics)
        etag = f'"{crc32(msgspec.json.encode(answer))}"'
        if received.headers.get("if-none-match") == etag:
            return 304, {"etag": etag}, b""
        return 200, {"etag": etag, "content-type": "application/json"}, msgspec.json.encode(answer)

    def accept(
        self, topic_id: str, partition: int, header: BatchHeader, records: list[Record]
    ) -> dict[str, object]:
        """Store a batch if it has the next sequence, and refuse an early batch, which a real broker would delay."""
        if header.producer_id < 0:
            return self.store(topic_id, partition, records)
        place = (partition, header.producer_id)
        known = self.producers.get(place)
        span = (header.base_sequence, len(records))
        if known is not None and header.producer_epoch < known.epoch:
            return refused(topic_id, partition, "producer_fenced", producer_epoch=known.epoch)
        if known is None or header.producer_epoch > known.epoch:
            if header.base_sequence:
                return refused(topic_id, partition, "unknown_producer", producer_id=header.producer_id)
            known = self.producers[place] = Remembered(header.producer_epoch, 0, {})
        if span in known.answers:
            return {**known.answers[span], "duplicate": True}
        if header.base_sequence != known.expected:
            return refused(topic_id, partition, "out_of_order_sequence", expected=known.expected)
        known.expected = (header.base_sequence + len(records)) % 2**31
        answer = known.answers[span] = self.store(topic_id, partition, records)
        if len(known.answers) > 5:
            del known.answers[next(iter(known.answers))]
        return answer

    def store(self, topic_id: str, partition: int, records: list[Record]) -> dict[str, object]:
        """Append the records of a frame and return the frame's entry in the answer."""
        log = self.logs.setdefault(partition, [])
        base = len(log)
        log += records
        return {
            "topic_id": topic_id,
            "partition": partition,
            "base_offset": base,
            "last_offset": len(log) - 1,
            "log_append_time": "2026-01-01T00:00:00.000000Z",
            "leader_epoch": 1,
        }


def json_reply(document: object, status: int = 200) -> Reply:
    """Return a JSON answer."""
    return status, {"content-type": "application/json"}, msgspec.json.encode(document)


def problem_reply(code: str, **data: str) -> Reply:
    """Return a problem of the catalogue in the form in which a broker answers it."""
    problem = ProblemError(code, f"scripted {code}", data=data)
    return problem.status, {"content-type": PROBLEM}, msgspec.json.encode(problem.to_document())


def refused(topic_id: str, partition: int, code: str, **data: int) -> dict[str, object]:
    """Return the entry of a refused partition in the answer to a produce request."""
    problem = ProblemError(code, f"scripted {code}", data=data)
    return {"topic_id": topic_id, "partition": partition, "problem": problem.to_document()}


def fetch_reply(*parts: tuple[int, int, bytes], high_watermark: int | None = None) -> Reply:
    """Return a fetch answer from (partition, next offset, stored batches); the log ends by default at that offset."""
    frames: list[bytes] = []
    for partition, next_offset, data in parts:
        meta = FetchFrameMeta(
            topic_id=TOPIC_ID,
            partition=partition,
            next_offset=next_offset,
            high_watermark=next_offset if high_watermark is None else high_watermark,
            log_start_offset=0,
            last_stable_offset=next_offset,
            leader_epoch=1,
        )
        frames += [bytes(part) for part in encode_frame(meta, [data])]
    return 200, {"content-type": FRAMES}, b"".join(frames)


def fetch_problem(partition: int, code: str, **data: str) -> Reply:
    """Return a fetch answer in which one partition is refused."""
    problem = ProblemError(code, f"scripted {code}", data=data)
    meta = FetchProblemMeta(topic_id=TOPIC_ID, partition=partition, problem=dict(problem.to_document()))
    return 200, {"content-type": FRAMES}, b"".join(bytes(part) for part in encode_frame(meta))


def stored_batch(values: list[bytes | None], base_offset: int, leader_epoch: int = 1) -> bytes:
    """Return a batch as a leader stores it."""
    batch = encode(record_batch(values, default_timestamp_us=1_000_000)).to_bytes()
    return make_stamp(read_header(batch), base_offset, leader_epoch, 9_000_000) + batch[36:]


@dataclass
class Replies:
    """Functions that build scripted answers."""

    json: Callable[..., Reply] = json_reply
    problem: Callable[..., Reply] = problem_reply
    fetched: Callable[..., Reply] = fetch_reply
    fetch_problem: Callable[..., Reply] = fetch_problem
    stored: Callable[..., bytes] = stored_batch


@pytest.fixture
def replies() -> Replies:
    """Return the functions that build scripted answers."""
    return Replies()


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """Yield a scripted broker that has the topic `flights` with two partitions."""
    async with ScriptedBroker() as scripted:
        yield scripted
