"""Fixtures of a whole broker in this process, over real sockets, and a client that returns its answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from pyreqwest.client import Client, ClientBuilder

from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.batch.header import Codec
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import LocalCluster, RunningBroker, start_broker, start_local_cluster
from http_group_kit import NUMBERS, Balancer, Scene
from waiting import until

BATCHES = "application/vnd.fairlead.batches"
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        """Body as JSON."""
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """Code of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        document = self.json
        assert document["status"] == self.status, document
        return document["code"]


class Api:
    """Requests to one broker."""

    def __init__(self, client: Client, base: str) -> None:
        self.client = client
        self.base = base

    async def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send one request unchanged."""
        request = self.client.request(method, self.base + path).headers(headers or {})
        if body is not None:
            request = request.body_bytes(body)
        answer = await request.build().send()
        return Answer(answer.status, dict(answer.headers), bytes(await answer.bytes()))

    async def get(self, path: str, **headers: str) -> Answer:
        """Send a GET with header names written with underscores."""
        return await self.call("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    async def post(self, path: str, value: object) -> Answer:
        """Send a POST of JSON."""
        return await self.call("POST", path, msgspec.json.encode(value), JSON)

    async def post_batch(self, path: str, batch: bytes, **headers: str) -> Answer:
        """Send a POST of a record batch, with header names written with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.call("POST", path, batch, {"content-type": BATCHES, **named})

    async def create(self, name: str, partitions: int = 1, **config: object) -> str:
        """Create a topic and return its id."""
        named = {key.replace("_", "."): value for key, value in config.items()}
        answer = await self.post("/v1/topics", {"name": name, "partitions": partitions, "config": named})
        assert answer.status == 201, answer
        return answer.json["topic_id"]

    async def end_offset(self, topic: str, partition: int = 0) -> int:
        """Return the log end offset of a partition."""
        return (await self.get(f"/v1/topics/{topic}/partitions/{partition}/offsets")).json["log_end_offset"]


@pytest.fixture
def batch_of() -> Callable[..., bytes]:
    """Return a function that encodes values as an unstamped record batch."""

    def make(
        *values: bytes | None,
        timestamp_us: int = 1_700_000_000_000_000,
        codec: Codec = Codec.NONE,
        producer: ProducerStamp | None = None,
    ) -> bytes:
        columns = record_batch(list(values), default_timestamp_us=timestamp_us)
        return encode(columns, codec, producer).to_bytes()

    return make


async def exchange(address: str, request: bytes, *, ends: bool = False) -> Answer:
    """Send the bytes of an HTTP/1.1 request unchanged, without a client library, and return the answer.

    With `ends`, the client closes its direction of the connection after the request.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        if ends:
            writer.write_eof()
        received = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return Answer(int(lines[0].split(" ")[1]), headers, body)


class RawApi:
    """Client that sends raw bytes, for input that no client library sends."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def send(self, request: bytes, *, ends: bool = False) -> Answer:
        """Send any bytes and read the connection until the server closes it."""
        return await exchange(self.address, request, ends=ends)

    async def call(
        self, method: str, target: str, body: bytes = b"", content_type: str = "application/json"
    ) -> Answer:
        """Send a request with an unchanged target."""
        head = f"{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {content_type}\r\n"
        return await self.send(f"{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body)


class Cluster:
    """Starts brokers, one after another or concurrently, and stops the brokers that still run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[RunningBroker] = []
        self._clients: list[Client] = []

    async def start(self, data: str = "data", **settings: object) -> RunningBroker:
        """Start a broker on free ports with its data in a folder of this test."""
        given = {
            "data": self._folder / data,
            "listen": "127.0.0.1:0",
            "peer_listen": "127.0.0.1:0",
            "ops_listen": "127.0.0.1:0",
            **settings,
        }
        running = await start_broker(BrokerSettings(**given))
        self._running.append(running)
        return running

    async def stop(self, broker: RunningBroker) -> None:
        """Stop a broker."""
        self._running.remove(broker)
        await broker.stop()

    async def client(self, address: str | None, *, http1: bool = False) -> Api:
        """Return a client for an address, with a separate connection."""
        builder = ClientBuilder().http1_only() if http1 else ClientBuilder().http2_prior_knowledge()
        client = await builder.build().__aenter__()
        self._clients.append(client)
        return Api(client, f"http://{address}")

    async def close(self) -> None:
        """Stop all brokers and close all clients."""
        for client in self._clients:
            await client.close()
        for running in self._running:
            await running.stop()


@dataclass(frozen=True, slots=True)
class Shared:
    """A broker that several tests use, and its clients."""

    broker: RunningBroker
    api: Api
    raw: RawApi
    ops: Api


@dataclass
class Three:
    """Three brokers on one store, and requests to each broker."""

    brokers: list[RunningBroker]
    apis: list[Api]

    def at(self, broker: int) -> Api:
        """Return the client of a broker."""
        return self.apis[broker - 1]

    async def leaders(self, topic: str, count: int) -> list[int]:
        """Return the leader of each partition, once every broker knows a leader for each."""
        async with asyncio.timeout(20):
            while True:
                seen = []
                for api in self.apis:
                    answer = await api.get(f"/v1/metadata?topics={topic}")
                    if answer.status == 200:
                        [found] = answer.json["topics"]
                        seen.append([each["leader"] for each in found["partitions"]])
                if (
                    len(seen) == 3
                    and seen[0] == seen[1] == seen[2]
                    and len(seen[0]) == count
                    and None not in seen[0]
                ):
                    return seen[0]

    async def topic(self, name: str, partitions: int = 3) -> tuple[str, list[int]]:
        """Create a topic with one replica per partition; return its id and its leaders, whose logs are open."""
        created = await self.at(3).post(
            "/v1/topics", {"name": name, "partitions": partitions, "replication_factor": 1}
        )
        assert created.status == 201, created
        leaders = await self.leaders(name, partitions)
        for leader in leaders:
            await self.brokers[leader - 1].broker.replicas.settled()
        return created.json["topic_id"], leaders


async def three_brokers(
    cluster: Cluster, folder: Path, limits: dict[str, float] | None = None
) -> tuple[LocalCluster, Three]:
    """Start a cluster in this process; the caller stops the cluster."""
    settings = [
        BrokerSettings(
            id=number,
            data=folder / f"broker-{number}",
            listen="127.0.0.1:0",
            peer_listen="127.0.0.1:0",
            ops_listen="127.0.0.1:0",
            limits=limits or {},
        )
        for number in (1, 2, 3)
    ]
    local = await start_local_cluster(settings, folder / "coordination.sqlite")
    apis = [await cluster.client(broker.addresses.data) for broker in local.brokers]
    return local, Three(list(local.brokers), apis)


@pytest.fixture
async def three(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Three]:
    """Yield three brokers that only this test uses, with the limits in the test's parameter if there is one."""
    local, brokers = await three_brokers(cluster, tmp_path, getattr(request, "param", None))
    yield brokers
    await local.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared_three(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Three]:
    """Yield three brokers for all tests of a file, which use distinct names and run in the module's event loop."""
    folder = tmp_path_factory.mktemp("three")
    clients = Cluster(folder)
    local, brokers = await three_brokers(clients, folder)
    yield brokers
    await clients.close()
    await local.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def calls(shared_three: Three) -> Balancer:
    """Return a client that sends each request to the next broker."""
    return Balancer(shared_three)


@pytest_asyncio.fixture(loop_scope="module")
async def scene(calls: Balancer, batch_of: Callable[..., bytes]) -> Scene:
    """Return three partitions with ten records each."""
    number = next(NUMBERS)
    topic = f"flights-{number}"
    topic_id, _ = await calls.three.topic(topic, 3)
    for partition in range(3):
        stored = await calls.three.at(1).post_batch(
            f"/v1/topics/{topic}/partitions/{partition}/records", batch_of(*[b"x"] * 10)
        )
        assert stored.status == 200, stored
    return Scene(calls, topic, topic_id, f"readers-{number}")


async def until_polls(broker: RunningBroker, count: int) -> None:
    """Wait until `count` long polls wait at a broker of this process."""
    await until(lambda: broker.broker.fetching.waiting == count)


@pytest.fixture
def polls() -> Callable[[RunningBroker, int], Awaitable[None]]:
    """Return a function that waits until a number of long polls wait at a broker."""
    return until_polls


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield a starter of brokers for tests that start brokers themselves."""
    started = Cluster(tmp_path)
    yield started
    await started.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    """Yield one broker for all tests of a file, which leave nothing behind and run in the module's event loop."""
    started = Cluster(tmp_path_factory.mktemp("shared"))
    broker = await started.start()
    assert broker.addresses.data is not None
    yield Shared(
        broker,
        await started.client(broker.addresses.data),
        RawApi(broker.addresses.data),
        await started.client(broker.addresses.ops, http1=True),
    )
    await started.close()


@pytest.fixture
async def broker(cluster: Cluster) -> RunningBroker:
    """Return a broker with an empty data directory."""
    return await cluster.start()


@pytest.fixture
async def api(cluster: Cluster, broker: RunningBroker) -> Api:
    """Return a client of the broker's data listener over HTTP/2."""
    return await cluster.client(broker.addresses.data)


@pytest.fixture
async def ops(cluster: Cluster, broker: RunningBroker) -> Api:
    """Return a client of the broker's ops listener."""
    return await cluster.client(broker.addresses.ops, http1=True)


@pytest.fixture
def raw(broker: RunningBroker) -> RawApi:
    """Return raw access to the broker's data listener."""
    assert broker.addresses.data is not None
    return RawApi(broker.addresses.data)
