"""Brokers as processes that can be killed, requests to any broker, and batches to send.

The module is for tests of a broker from a client's point of view.
"""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
from pyreqwest.client import Client, ClientBuilder

from fairlead_api.batch.batches import ProducerStamp, decode_records, encode, record_batch
from warm_programs import WarmProcess, start

BATCHES = "application/vnd.fairlead.batches"
JSON = {"content-type": "application/json"}
FREE = "127.0.0.1:0"
TIME_US = 1_700_000_000_000_000
START_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Body as JSON."""
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """Problem code in the body of a refusal."""
        assert self.headers["content-type"] == "application/problem+json", self
        return str(self.json["code"])


class Calls:
    """Requests to one address over one HTTP/2 connection."""

    def __init__(
        self,
        address: str,
        ca_pem: bytes | None = None,
        token: str | None = None,
        identity_pem: bytes | None = None,
    ) -> None:
        """`ca_pem`: authorities of the broker; if given, calls use TLS. `token` is sent with every request.

        `identity_pem`: key and certificate of the client.
        """
        self._own = {} if token is None else {"authorization": f"Bearer {token}"}
        self._base = f"{'http' if ca_pem is None else 'https'}://{address.removeprefix('http://')}"
        builder = ClientBuilder().http2_prior_knowledge()
        if ca_pem is not None:
            builder = builder.add_root_certificate_pem(ca_pem)
        if identity_pem is not None:
            builder = builder.identity_pem(identity_pem)
        self._client: Client = builder.build()

    @classmethod
    def http1(cls, address: str) -> Self:
        """Return requests to an address over HTTP/1.1, as the ops listener expects them."""
        calls = cls(address)
        calls._client = ClientBuilder().http1_only().build()
        return calls

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._client.close()

    async def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send one request unchanged."""
        request = self._client.request(method, self._base + path).headers({**self._own, **(headers or {})})
        if body is not None:
            request = request.body_bytes(body)
        answer = await request.build().send()
        return Answer(answer.status, dict(answer.headers), bytes(await answer.bytes()))

    async def post(self, path: str, value: object, **headers: str) -> Answer:
        """Send a POST of JSON, with header names written with underscores."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return await self.call("POST", path, msgspec.json.encode(value), {**JSON, **named})

    async def create(self, topic: str, partitions: int = 1, **config: object) -> str:
        """Create a topic and return its id."""
        named = {key.replace("_", "."): value for key, value in config.items()}
        answer = await self.post("/v1/topics", {"name": topic, "partitions": partitions, "config": named})
        assert answer.status == 201, answer
        return str(answer.json["topic_id"])

    async def send(self, topic: str, batch: bytes, partition: int = 0, query: str = "") -> Answer:
        """Send a produce request with one record batch."""
        path = f"/v1/topics/{topic}/partitions/{partition}/records{query}"
        return await self.call("POST", path, batch, {"content-type": BATCHES})

    async def values(self, topic: str, partition: int = 0) -> list[bytes]:
        """Return every committed value of a partition."""
        path = f"/v1/topics/{topic}/partitions/{partition}"
        offsets = (await self.call("GET", f"{path}/offsets")).json
        offset, values = offsets["log_start_offset"], []
        while offset < offsets["high_watermark"]:
            answer = await self.call(
                "GET", f"{path}/records?offset={offset}&max_bytes=8388608", None, {"accept": BATCHES}
            )
            assert answer.status == 200, answer
            values += [record.value or b"" for record in decode_records(answer.body)]
            offset = int(answer.headers["fairlead-next-offset"])
        return values


class BrokerProgram:
    """A `fairlead broker start` process over one data directory; tests can stop, kill and restart the process."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._process: WarmProcess | None = None
        self._listen = FREE
        self.address = ""

    async def start(self) -> None:
        """Start the process, at the same address as before, and wait until the broker serves."""
        self._process = await asyncio.to_thread(self._spawn)
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS_MAX):
            ready = await asyncio.to_thread(self._process.stdout.readline)
        self.address = json.loads(ready)["brokers"][0]["data"]
        self._listen = self.address.removeprefix("http://")

    def _spawn(self) -> WarmProcess:
        command = ["broker", "start", "--output", "json", "--data", str(self.data)]
        return start(*command, "--listen", self._listen, "--peer-listen", FREE, "--ops-listen", FREE)

    def kill(self) -> None:
        """Kill the process, which neither flushes files nor answers requests."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process gracefully."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdout is not None
            process.send_signal(number)
            process.wait(20)
            process.stdout.close()


def sequenced(
    sequence: int,
    values: list[bytes],
    *,
    producer_id: int = 7,
    epoch: int = 0,
    timestamp_us: int = TIME_US,
) -> bytes:
    """Return a batch of an idempotent producer; equal arguments give equal bytes."""
    columns = record_batch(list(values), default_timestamp_us=timestamp_us)
    return encode(columns, producer=ProducerStamp(producer_id, epoch, sequence)).to_bytes()
