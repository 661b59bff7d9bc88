"""Work of the parts of `scale.py` in a separate process: idle connections, members of groups, idempotent producers.

`connections` and `groups` print one JSON object when all connections are open or all members have joined, and then
continue until standard input is closed. `producers` sends batches for some seconds and prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import cast

import msgspec
import pyreqwest.client
import uvloop

from fairlead_api.batch.batches import ProducerStamp, encode_records
from fairlead_api.bodies.frames import encode_frame
from fairlead_api.bodies.media_types import FRAMES, JSON
from fairlead_api.bodies.requests import ProduceAnswer, ProduceFrameMeta
from fairlead_api.routes.producers import ProducerAnswer

sys.path.insert(0, str(__file__).rpartition("/workloads/")[0])

from workloads.plain_groups import PlainClient, PlainMember

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, HEADERS, DATA = 4, 6, 1, 0
ACKNOWLEDGED = END_STREAM = 1
END_HEADERS = 4
ADDRESS_CONNECTIONS = 2_500
"""Connections from one loopback address, below the broker's default for connections from one address."""
AT_ONCE = 16
SESSION_MS = 45_000
VALUE = b"v" * 100


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class IdleConnection(asyncio.Protocol):
    """HTTP/2 connection that makes one request, and afterwards only answers pings."""

    def __init__(self) -> None:
        self.answered = asyncio.get_running_loop().create_future()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and the request."""
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        path = b"/v1/versions"
        # Indexed fields `:method: GET` and `:scheme: http`, and literals for `:path` and `:authority`.
        head = b"\x82\x86\x04" + bytes([len(path)]) + path + b"\x01\x09localhost"
        request = frame(HEADERS, END_STREAM | END_HEADERS, 1, head)
        self.transport.write(PREFACE + frame(SETTINGS, 0, 0) + request)

    def data_received(self, data: bytes) -> None:
        """Answer settings and pings; the end of the answer completes `answered`."""
        self._received += data
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3])
            if len(self._received) < 9 + size:
                return
            kind, flags = self._received[3], self._received[4]
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            if kind in (SETTINGS, PING) and not flags & ACKNOWLEDGED:
                self.transport.write(frame(kind, ACKNOWLEDGED, 0, payload if kind == PING else b""))
            elif kind in (HEADERS, DATA) and flags & END_STREAM and not self.answered.done():
                self.answered.set_result(None)

    def connection_lost(self, _: Exception | None) -> None:
        """Fail a request without an answer."""
        if not self.answered.done():
            self.answered.set_exception(ConnectionError("the broker closed the connection"))


async def connections(options: argparse.Namespace) -> None:
    """Open connections, each of which makes one request."""
    host, _, port = options.url.removeprefix("http://").rpartition(":")
    numbers = iter(range(options.count))
    loop = asyncio.get_running_loop()
    kept = []

    async def open_some() -> None:
        for number in numbers:
            local = (f"127.0.0.{2 + number // ADDRESS_CONNECTIONS}", 0)
            _, connection = await loop.create_connection(IdleConnection, host, int(port), local_addr=local)
            await connection.answered
            kept.append(connection)

    began = time.perf_counter()
    await asyncio.gather(*(open_some() for _ in range(AT_ONCE)))
    say({"seconds": time.perf_counter() - began})
    await asyncio.to_thread(sys.stdin.readline)
    assert not any(each.transport.is_closing() for each in kept), "the broker closed idle connections"


async def groups(options: argparse.Namespace) -> None:
    """Join groups of one member each, and send heartbeats at the interval that the broker asks for."""
    loop = asyncio.get_running_loop()
    async with PlainClient((options.url,)) as client:
        members = [
            PlainMember(client, f"group-{number}", "member", options.topic) for number in range(options.count)
        ]
        waiting = iter(members)

        async def join_some() -> None:
            for member in waiting:
                await member.join_at_last(SESSION_MS)

        began = time.perf_counter()
        await asyncio.gather(*(join_some() for _ in range(AT_ONCE)))
        say({"seconds": time.perf_counter() - began})
        beats = [loop.create_task(_beat(each, index / len(members))) for index, each in enumerate(members)]
        await asyncio.to_thread(sys.stdin.readline)
        for beat in beats:
            beat.cancel()
        await asyncio.wait(beats)


async def _beat(member: PlainMember, share: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time() + share * member.interval_seconds
    while True:
        await asyncio.sleep(due - loop.time())
        await member.beat()
        due = max(due + member.interval_seconds, loop.time())


class StampedProducer:
    """Producer that numbers its batches of one record, each in the same partition."""

    def __init__(self, identity: ProducerAnswer, topic_id: str, partition: int) -> None:
        self._identity = identity
        self._meta = ProduceFrameMeta(topic_id=topic_id, partition=partition)
        self._sequence = 0

    def body(self) -> bytes:
        """Return the next batch as a request body."""
        identity = self._identity
        stamp = ProducerStamp(identity.producer_id, identity.producer_epoch, self._sequence)
        self._sequence += 1
        batch = encode_records([VALUE], None, [time.time_ns() // 1000], producer=stamp)
        return b"".join(encode_frame(self._meta, batch.parts))


async def producers(options: argparse.Namespace) -> None:
    """Send batches of idempotent producers in turn, a few at a time."""
    builder = pyreqwest.client.ClientBuilder().http2_prior_knowledge().no_proxy().tcp_nodelay(True)
    async with builder.build() as client:

        async def post(path: str, body: bytes, media_type: str) -> bytes:
            request = client.post(options.url + path).body_bytes(body).header("content-type", media_type)
            response = await request.header("accept", JSON).build().send()
            answer = bytes(await response.bytes())
            assert response.status < 400, answer[:500]
            return answer

        waiting: deque[StampedProducer] = deque()
        numbers = iter(range(options.count))

        async def allocate() -> None:
            for number in numbers:
                answer = await post("/v1/producers", b"{}", JSON)
                identity = msgspec.json.decode(answer, type=ProducerAnswer)
                waiting.append(StampedProducer(identity, options.topic_id, number % options.partitions))

        began = time.perf_counter()
        await asyncio.gather(*(allocate() for _ in range(AT_ONCE)))
        allocated = time.perf_counter() - began
        samples: list[float] = []

        async def send_some(deadline: float, least: int) -> None:
            while waiting and (time.perf_counter() < deadline or len(samples) < least):
                producer = waiting.popleft()
                sent = time.perf_counter()
                answer = await post("/v1/produce?acks=all", producer.body(), FRAMES)
                assert not _problems(answer), answer[:500]
                samples.append(time.perf_counter() - sent)
                waiting.append(producer)

        began = time.perf_counter()
        deadline = began + options.seconds
        # Each producer sends at least one batch, so that its partition remembers it.
        await asyncio.gather(
            *(send_some(deadline, options.count) for _ in range(min(AT_ONCE, options.count)))
        )
        seconds = time.perf_counter() - began
    samples.sort()
    say(
        {
            "seconds": allocated,
            "batches": len(samples),
            "batches_per_second": len(samples) / seconds,
            "p50_ms": median(samples) * 1000,
            "p99_ms": samples[int(len(samples) * 0.99)] * 1000,
        }
    )


def _problems(answer: bytes) -> Sequence[object]:
    results = msgspec.json.decode(answer, type=ProduceAnswer).results
    return [each.problem for each in results if each.problem is not msgspec.UNSET]


def say(figures: dict[str, float]) -> None:
    """Print figures on one line."""
    print(json.dumps(figures), flush=True)


def main() -> None:
    """Parse the command line, and do one kind of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds: dict[str, Callable[[argparse.Namespace], Awaitable[None]]] = {
        "connections": connections,
        "groups": groups,
        "producers": producers,
    }
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--topic", help="groups: topic of the members")
    parser.add_argument("--topic-id", help="producers: id of the topic")
    parser.add_argument("--partitions", type=int, default=1, help="producers: partitions of the topic")
    parser.add_argument("--seconds", type=float, default=5.0, help="producers: duration")
    options = parser.parse_args()
    uvloop.run(kinds[options.kind](options))


if __name__ == "__main__":
    main()
