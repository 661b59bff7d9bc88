"""Memory of requests is bounded: with readers that stall, bodies that grow when decompressed, and too many bodies."""

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import asdict

import pytest

from broker_kit import BATCHES, Answer, Calls
from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.batch.header import RECORDS_MAX, Codec
from figures import record
from overload_kit import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MIB,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    BrokerUnderLoad,
    calm_client,
    frame,
    now,
    one_batch,
    pause,
    request_block,
    settings,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.prove]

P99_MS_MAX = 1000.0
"""Maximum latency of a well-behaved client during an attack that moves data, on an otherwise idle machine."""
STALLED_MIB = 1.0
"""Memory of one stalled reader beyond the bytes that the broker counts: the last part of its answer, in buffers."""


async def filled(calls: Calls, topic: str, size_mib: int) -> None:
    """Create a topic with `size_mib` MiB in batches of a MiB."""
    await calls.create(topic)
    batch = one_batch(MIB, 1)
    for _ in range(size_mib):
        assert (await calls.send(topic, batch)).status == 200


@pytest.mark.parametrize("protocol", [pytest.param("http1", marks=pytest.mark.scenario), "http2"])
async def test_stalled_readers(start, full, patience, protocol) -> None:
    """Stalled readers that request 64 MiB use the memory budget and no more, and other clients are served."""
    count = 500 if full else 50
    budget_mib = 256 if full else 32
    broker = await start(answers_bytes_max=budget_mib * MIB, crowded_stall_seconds_max=1)
    async with Calls(broker.address) as calls, calm_client(broker) as calm:
        await filled(calls, "large", 64)
        quiet = await calm.run(2 if full else 0.3)
        memory, descriptors = broker.memory_mib, broker.descriptors
        stalled = [await stalled_reader(broker, protocol) for _ in range(count)]
        beside = await calm.run(8 if full else 4)
        peak = broker.memory_mib
        for connection in stalled:
            connection.close()
        came_back = await until(lambda: broker.descriptors <= descriptors + 10, 30)
        after = await calm.run(1)
    bound = budget_mib + count * STALLED_MIB + 64
    if full:
        told = {"count": count, "quiet": asdict(quiet), "beside": asdict(beside)}
        told |= {"memory_before_mib": round(memory), "memory_peak_mib": round(peak), "bound_mib": bound}
        record(f"stalled_readers_{protocol}", told)

    assert came_back
    assert peak - memory < bound
    assert beside.failures == after.failures == 0
    assert beside.p99_ms < P99_MS_MAX * patience


async def stalled_reader(broker: BrokerUnderLoad, protocol: str):
    """Return a connection that requests the whole topic and reads nothing."""
    path = "/v1/topics/large/partitions/0/records?max_bytes=67108864"
    loop = asyncio.get_running_loop()
    if protocol == "http1":
        connection = broker.connect(receive_bytes=4096)
        await loop.sock_sendall(
            connection, f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {BATCHES}\r\n\r\n".encode()
        )
        return connection
    connection = broker.connect()
    block = request_block("GET", path, accept=BATCHES)
    await loop.sock_sendall(
        connection,
        PREFACE + settings({INITIAL_WINDOW_SIZE: 0}) + frame(HEADERS, END_STREAM | END_HEADERS, 1, block),
    )
    return connection


async def test_stalled_reader_loses_its_connection(start) -> None:
    """A connection whose reader stalls for the allowed time is closed, even when memory is free."""
    broker = await start(reader_stall_seconds_max=1)
    async with Calls(broker.address) as calls:
        await filled(calls, "large", 32)
        descriptors = broker.descriptors
        stalled = [await stalled_reader(broker, "http1") for _ in range(10)]
        connected = await until(lambda: broker.descriptors >= descriptors + 10, 10)
        cut = await until(lambda: broker.descriptors <= descriptors + 1, 15)
        for connection in stalled:
            connection.close()

        assert connected
        assert cut
        assert (await calls.call("GET", "/v1/versions")).status == 200


@pytest.mark.scenario
@pytest.mark.parametrize(
    ("name", "path", "left"),
    [
        ("stalled_tails", "/records?from=earliest", 300),
        ("stalled_readers_of_json", "/partitions/0/records", 20),
    ],
    ids=["tail", "json"],
)
async def test_stalled_readers_of_text(start, full, patience, name, path, left) -> None:
    """A fetch of text that its client does not read uses memory from the budget, and further fetches are refused.

    A small batch may become a large JSON text. The bound allows for the open batches of two codec threads. Tails
    request memory repeatedly, which closes some stalled readers each second: the budget admits 16 tails at once, and
    each writes up to 4 MiB of text into the kernel's send buffer before it stalls. The few admitted JSON answers stay
    until another request needs their memory.
    """
    count = 400 if full else 100
    broker = await start(answers_bytes_max=32 * MIB, crowded_stall_seconds_max=1)
    now_us = time.time_ns() // 1000
    batch = encode(record_batch([b"x"] * 60_000, default_timestamp_us=now_us), Codec.ZSTD).to_bytes()
    request = f"GET /v1/topics/many{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
    async with Calls(broker.address) as calls, calm_client(broker) as calm:
        await calls.create("many")
        assert (await calls.send("many", batch)).status == 200
        quiet = await calm.run(1 if full else 0.3)
        memory, descriptors = broker.memory_mib, broker.descriptors
        stalled = [broker.connect(receive_bytes=4096) for _ in range(count)]
        for connection in stalled:
            await asyncio.get_running_loop().sock_sendall(connection, request)
        beside = await calm.run(8)
        peak = broker.memory_mib
        ended = await until(lambda: broker.descriptors <= descriptors + left, 15)
        for connection in stalled:
            connection.close()
    if full:
        told = {"count": count, "quiet": asdict(quiet), "beside": asdict(beside)}
        record(name, told | {"memory_before_mib": round(memory), "memory_peak_mib": round(peak)})

    assert peak - memory < 256
    assert ended
    assert beside.failures == 0
    assert beside.p99_ms < P99_MS_MAX * patience


async def test_compression_bombs(start, full, patience) -> None:
    """Compressed batches that decompress beyond the limits are refused; stored batches are answered in parts."""
    count = 200 if full else 20
    broker = await start()
    now_us = time.time_ns() // 1000
    within = encode(record_batch([8 * MIB * b"x"], default_timestamp_us=now_us), Codec.ZSTD).to_bytes()
    beyond = encode(record_batch([bytes(65 * MIB)], default_timestamp_us=now_us), Codec.ZSTD).to_bytes()
    lying = bytearray(beyond)
    struct.pack_into("<I", lying, 80, 1000)
    async with Calls(broker.address) as calls, calm_client(broker) as calm:
        await calls.create("bombs")
        quiet = await calm.run(1 if full else 0.3)
        memory = broker.memory_mib
        sends = [calls.send("bombs", bytes(bomb)) for bomb in (beyond, lying) for _ in range(count)]
        statuses = {answer.status for answer in await asyncio.gather(*sends)}
        for _ in range(20):
            assert (await calls.send("bombs", within)).status == 200
        path = "/v1/topics/bombs/partitions/0/records?max_bytes=8000000&offset=0"
        reading = asyncio.ensure_future(calls.call("GET", path, None, {"accept": "application/json"}))
        beside = await calm.run(3 if full else 2)
        answer = await reading
        peak = broker.memory_mib
    if full:
        told = {"count": 2 * count, "quiet": asdict(quiet), "beside": asdict(beside)}
        record(
            "compression_bombs", told | {"memory_before_mib": round(memory), "memory_peak_mib": round(peak)}
        )

    assert len(beyond) < 100_000
    # Several hundred concurrent requests may also exceed the number of admitted requests.
    assert statuses <= {400, 413, 503}
    assert 413 in statuses
    # The batch has 160 MiB; an answer decompresses 16 MiB of the batch and names the next offset.
    assert answer.status == 200
    assert 1 <= answer.json["next_offset"] <= 3
    assert int(answer.headers["fairlead-next-offset"]) == answer.json["next_offset"]
    # The bound allows for two validation threads and two codec threads, each with one open batch and its result.
    assert peak - memory < 1024
    assert beside.failures == 0
    assert beside.p99_ms < P99_MS_MAX * patience


async def test_batches_of_many_objects(start, full, patience) -> None:
    """Batches with a million empty records or headers in few kilobytes are refused, and JSON fetches are split."""
    readers = 20 if full else 3
    records, headers = (2_350_000, 4_000_000) if full else (1_200_000, 1_200_000)
    broker = await start()
    now_us = time.time_ns() // 1000
    most = encode(record_batch([b""] * RECORDS_MAX, default_timestamp_us=now_us), Codec.ZSTD).to_bytes()
    empty = encode(record_batch([b""] * records, default_timestamp_us=now_us), Codec.ZSTD).to_bytes()
    names = [[("", b"")] * headers]
    headed = encode(record_batch([b""], headers=names, default_timestamp_us=now_us), Codec.ZSTD).to_bytes()
    path = "/v1/topics/objects/partitions/0/records?offset="
    offset = 0
    async with Calls(broker.address) as calls, calm_client(broker) as calm:
        await calls.create("objects")
        refused = [await calls.send("objects", bomb) for bomb in (empty, headed)]
        assert (await calls.send("objects", most)).status == 200
        quiet = await calm.run(1 if full else 0.3)
        memory = broker.memory_mib
        reading = [
            asyncio.ensure_future(calls.call("GET", f"{path}{at}", None, {"accept": "application/json"}))
            for at in range(readers)
        ]
        beside = await calm.run(3 if full else 2)
        answers = await asyncio.gather(*reading)
        peak = broker.memory_mib
        while offset < RECORDS_MAX:
            answer = await calls.call("GET", f"{path}{offset}", None, {"accept": "application/json"})
            assert answer.json["records"][0]["offset"] == offset
            # Only a long run reads the answers between the first and the last.
            offset = max(answer.json["next_offset"], 0 if full else RECORDS_MAX - 1)
    if full:
        told = {"count": readers, "quiet": asdict(quiet), "beside": asdict(beside)}
        record("many_objects", told | {"memory_before_mib": round(memory), "memory_peak_mib": round(peak)})

    assert [answer.code for answer in refused] == ["batch_too_large", "batch_too_large"]
    assert offset == RECORDS_MAX
    assert {answer.status for answer in answers} <= {200, 503}
    assert peak - memory < 512
    assert beside.failures == 0
    assert beside.p99_ms < P99_MS_MAX * patience


async def test_records_of_much_text(start, full, patience) -> None:
    """JSON readers of records that expand to many objects or much text use little memory, and no other client waits."""
    readers = 20 if full else 3
    broker = await start()
    now_us = time.time_ns() // 1000
    lists = b"[" + b"[]," * (4 * MIB // 3) + b"1]"
    values = {"objects": lists, "escapes": 16 * MIB * b"\x01"}
    async with Calls(broker.address) as calls, calm_client(broker) as calm:
        for topic, value in values.items():
            batch = encode(record_batch([value], default_timestamp_us=now_us), Codec.ZSTD).to_bytes()
            await calls.create(topic)
            assert (await calls.send(topic, batch)).status == 200
        quiet = await calm.run(1 if full else 0.3)
        memory = broker.memory_mib
        paths = [f"/v1/topics/{topic}/partitions/0/records?offset=0&encoding=json" for topic in values]
        reading = [
            asyncio.ensure_future(calls.call("GET", path, None, {"accept": "application/json"}))
            for path in paths * readers
        ]
        beside = await calm.run(3 if full else 2)
        answers = await asyncio.gather(*reading)
        peak = broker.memory_mib
    if full:
        told = {"count": readers, "quiet": asdict(quiet), "beside": asdict(beside)}
        record("much_text", told | {"memory_before_mib": round(memory), "memory_peak_mib": round(peak)})

    assert {answer.status for answer in answers} <= {200, 406, 503}
    # Records that expand to many objects are answered with 200, and records that expand to much text are refused with
    # 406.
    assert {200, 406} <= {answer.status for answer in answers}
    # The bound allows for two codec threads, each with one open batch, its value and the pieces of its text.
    assert peak - memory < 192
    assert beside.failures == 0
    assert beside.p99_ms < P99_MS_MAX * patience


class Posting:
    """A produce request over HTTP/2 whose body the test sends in parts."""

    def __init__(self, broker: BrokerUnderLoad, announced_bytes: int) -> None:
        self._broker = broker
        self._announced = announced_bytes
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> None:
        """Send the head."""
        self._reader, self._writer = await asyncio.open_connection(self._broker.host, self._broker.port)
        path = "/v1/topics/calm/partitions/0/records"
        block = request_block("POST", path, content_type=BATCHES, content_length=str(self._announced))
        self._writer.write(PREFACE + settings({}))
        # The broker allows a MiB of body only after its WINDOW_UPDATE; earlier DATA frames would exceed its window.
        kind = SETTINGS
        while kind != WINDOW_UPDATE:
            head = await self._reader.readexactly(9)
            await self._reader.readexactly(int.from_bytes(head[:3]))
            kind = head[3]
        # The stream's window takes effect only after the client has acknowledged the broker's SETTINGS.
        self._writer.write(frame(SETTINGS, ACK, 0) + frame(HEADERS, END_HEADERS, 1, block))
        await self._writer.drain()

    async def send(self, nbytes: int) -> None:
        """Send a part of the body."""
        for _ in range(nbytes // 16_384):
            self._writer.write(frame(DATA, 0, 1, bytes(16_384)))
        await self._writer.drain()

    async def answer(self) -> bytes:
        """Return all bytes until the end of the answer, with undecoded headers."""
        received = b""
        async with asyncio.timeout(30):
            while b"}" not in received:
                received += await self._reader.read(65_536)
        return received

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


@pytest.fixture
async def crowded(start) -> AsyncIterator[BrokerUnderLoad]:
    """Yield a broker with three quarters of its memory for bodies reserved by one request in flight."""
    broker = await start(bodies_bytes_max=4 * MIB)
    async with calm_client(broker):
        begun = Posting(broker, 4 * MIB)
        await begun.open()
        size = 3 * MIB - 65_536
        await begun.send(size)
        assert await until(lambda: broker.metric('fairlead_held_bytes{of="bodies"}') == size, 10)
        yield broker
        begun.close()


async def test_no_room_is_answered_before_the_body_is_sent(crowded, patience) -> None:
    """Without free memory, a request is refused before its body, with `overloaded` and Retry-After, within 0.1 s."""
    times, answers = [], []
    for _ in range(5):
        late = Posting(crowded, 3 * MIB)
        begun = now()
        await late.open()
        answers.append(await late.answer())
        times.append(now() - begun)
        late.close()

    assert all(b"overloaded" in answer for answer in answers)
    document = json.loads(answers[0][answers[0].index(b"{") : answers[0].index(b"}") + 1])
    assert (document["kind"], document["side_effect"]) == ("retry", "none")
    assert min(times) < 0.1 * patience


async def test_small_bodies_pass_beside_large_ones(crowded) -> None:
    """A request whose body fits in the free quarter of the memory for bodies is served."""
    async with Calls(crowded.address) as calls:
        stored = await calls.send("calm", one_batch(100, 1))

    assert stored.status == 200


async def patient(calls: Calls) -> Answer:
    """Send a batch, and retry after each refusal for lack of memory, as clients do, for at most five seconds."""
    answer = await calls.send("calm", one_batch(100_000, 1))
    for _ in range(9):
        if answer.status != 503:
            break
        await pause(0.5)
        answer = await calls.send("calm", one_batch(100_000, 1))
    return answer


@pytest.mark.serial
@pytest.mark.parametrize(
    "media_type",
    ["application/x-ndjson", pytest.param(BATCHES, marks=pytest.mark.scenario)],
    ids=["lines", "batches"],
)
async def test_held_bodies_end_when_others_need_their_memory(start, media_type) -> None:
    """Bodies that stall within a line or batch are ended at a time limit, or when other requests need the memory."""
    broker = await start(bodies_bytes_max=4 * MIB, json_body_bytes_max=MIB, body_idle_seconds_max=4)
    head = f"POST /v1/topics/calm/partitions/0/records HTTP/1.1\r\nhost: localhost\r\ncontent-type: {media_type}\r\n"
    part = bytes(MIB - 1000)
    request = f"{head}transfer-encoding: chunked\r\n\r\n{len(part):x}\r\n".encode() + part + b"\r\n"
    async with calm_client(broker) as calm, Calls(broker.address) as calls:
        held = [broker.connect() for _ in range(14)]
        for connection in held[:4]:
            await asyncio.get_running_loop().sock_sendall(connection, request)
        # The broker holds three bodies and has ended or refused the fourth, or holds all four.
        full = await until(lambda: broker.metric('fairlead_held_bytes{of="bodies"}') >= 3 * len(part), 10)
        for connection in held[4:]:
            await asyncio.get_running_loop().sock_sendall(connection, request)
        stored = [await patient(calls) for _ in range(5)]
        beside = await calm.run(2)
        freed = await until(lambda: broker.metric('fairlead_held_bytes{of="bodies"}') == 0, 8)
        for connection in held:
            connection.close()

    assert full
    assert [answer.status for answer in stored] == [200] * 5
    assert beside.failures == 0
    assert freed


async def test_long_polls_are_counted(start) -> None:
    """A long poll beyond the limit is refused with Retry-After, and an answered long poll frees its place."""
    broker = await start(long_polls_max=5)
    path = "/v1/topics/calm/partitions/0/records?offset=0&max_wait_ms=20000"
    async with calm_client(broker), Calls(broker.address) as calls:
        polls = [asyncio.ensure_future(calls.call("GET", path)) for _ in range(5)]
        assert await until(lambda: broker.metric("fairlead_long_polls_waiting") == 5, 10)
        refused = await calls.call("GET", path)
        stored = await calls.send("calm", one_batch(10, 1))
        answers = await asyncio.gather(*polls)

    assert (refused.code, refused.headers["retry-after"]) == ("overloaded", "1")
    assert stored.status == 200
    assert {answer.status for answer in answers} == {200}
