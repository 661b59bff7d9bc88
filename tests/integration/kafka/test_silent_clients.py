"""Kafka's clients that make no request: their connections are closed in time, and others are served."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

from broker_kit import FREE
from certificate_kit import Authority
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.wiring.start import RunningBroker
from kafka_kit import SECONDS_MAX, StartBroker, kafka_address, produced
from kafka_wire import KafkaConnection
from waiting import pause, until

FIRST_REQUEST_SECONDS_MAX = 1.0
BYTE_SECONDS = 0.1
"""Seconds between two bytes of a slow client."""


async def test_single_bytes_do_not_keep_a_connection_without_a_request(start: StartBroker) -> None:
    """A first request must be complete in time, counted from the opening; later requests may take longer."""
    running = await start(limits={"first_request_seconds_max": FIRST_REQUEST_SECONDS_MAX})
    address = kafka_address(running)
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = struct.pack(">ihhih", 10_000, ApiKey.METADATA, 1, 1, -1)
    clock = asyncio.get_running_loop().time
    begun = clock()
    async with KafkaConnection.open(address) as other:
        await other.ask(ApiKey.API_VERSIONS, 0)
        closing = asyncio.create_task(reader.read())
        async with asyncio.timeout(SECONDS_MAX):
            for byte in request + bytes(10_000):
                if closing.done():
                    break
                writer.write(bytes([byte]))
                await pause(BYTE_SECONDS)
        answer = await other.ask(ApiKey.API_VERSIONS, 0)
    writer.transport.abort()
    await asyncio.wait([closing])

    assert FIRST_REQUEST_SECONDS_MAX / 2 < clock() - begun < FIRST_REQUEST_SECONDS_MAX * 5
    assert answer.error_code == 0


async def test_a_client_may_wait_for_the_answer_to_its_first_request(start: StartBroker) -> None:
    """A first request may wait at the broker for longer than a client may take to send it."""
    running = await start(limits={"first_request_seconds_max": FIRST_REQUEST_SECONDS_MAX})
    await asyncio.to_thread(produced, kafka_address(running), "orders", [{"value": b"x"}])
    partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1024, "log_start_offset": -1}
    async with KafkaConnection.open(kafka_address(running)) as connection, asyncio.timeout(SECONDS_MAX):
        answer = await connection.ask(
            ApiKey.FETCH,
            11,
            replica_id=-1,
            max_wait_ms=int(FIRST_REQUEST_SECONDS_MAX * 4000),
            min_bytes=1,
            max_bytes=1024,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": "orders", "partitions": [partition]}],
            forgotten_topics_data=[],
            rack_id="",
        )

    assert answer.responses[0].partitions[0].error_code == 0


async def test_unfinished_handshakes_count_towards_the_limit_of_their_address(
    start: StartBroker, tmp_path: Path
) -> None:
    """Half of all connections are for Kafka, and half of those for one address; a closed connection leaves room."""
    authority = Authority.make()
    running = await start(
        tls=authority.issue().write(tmp_path / "tls", authority),
        limits={"connections_max": 8},
        **dict.fromkeys(("listen", "peer_listen", "ops_listen"), f"http://{FREE}"),
    )
    host, _, port = kafka_address(running).rpartition(":")
    clients = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
    ends = [asyncio.create_task(reader.read(1)) for reader, _ in clients]
    [refused], _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=5.0)
    counted = metric_of(running)
    clients[0][1].transport.abort()
    await until(lambda: metric_of(running) == 1)
    _, writer = await asyncio.open_connection(host, int(port))
    await until(lambda: metric_of(running) == 2)

    assert refused is ends[2]
    assert counted == 2
    for _, each in clients:
        each.transport.abort()
    writer.transport.abort()
    await asyncio.wait(ends)


async def test_a_client_without_a_token_is_closed_in_time(start: StartBroker, tmp_path: Path) -> None:
    """A client that makes requests but does not authenticate has twice the time of a first request."""
    running = await start(
        security="enforce",
        admin_token_file=tmp_path / "admin.token",
        limits={"first_request_seconds_max": FIRST_REQUEST_SECONDS_MAX},
    )
    reader, writer = await asyncio.open_connection(*kafka_address(running).rsplit(":", 1))
    writer.write(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1))
    async with asyncio.timeout(SECONDS_MAX):
        answers = await reader.read()
    writer.transport.abort()

    assert len(answers) > 4


def metric_of(running: RunningBroker) -> float | None:
    """Return the number of connections to the Kafka listener."""
    return running.broker.telemetry.registry.get_sample_value("fairlead_kafka_connections")
