"""Kafka's clients that make no request: their connections are closed in time, and others are served."""

from __future__ import annotations

import asyncio
import struct

from fairlead_broker.kafka.protocol.apis import ApiKey
from kafka_kit import SECONDS_MAX, StartBroker, kafka_address
from kafka_wire import KafkaConnection
from waiting import pause

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
