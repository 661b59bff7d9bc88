"""Every version of every API: a broker answers each request with a response that a second library reads."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_reader

from broker_kit import Calls
from fairlead_broker.kafka.protocol.apis import APIS, Api, ApiKey
from fairlead_broker.kafka.protocol.messages import MESSAGES, is_flexible
from kafka_kit import SECONDS_MAX, StartBroker, kafka_address
from kafka_messages import filled, message_of

EXAMPLES = 6
"""Number of generated requests for each version of an API."""


def call(address: str, api: Api, version: int, body: bytes) -> bytes:
    """Send one request over a separate connection, and return the response after its header."""
    host, _, port = address.rpartition(":")
    header = struct.pack(">hhih", api.key, version, 7, -1) + b"\0" * is_flexible(api, version)
    with socket.create_connection((host, int(port)), SECONDS_MAX) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (size,) = struct.unpack(">i", exactly(connection, 4))
        response = exactly(connection, size)
    # Responses of ApiVersions have the old header in every version.
    tagged = is_flexible(api, version) and api.key != ApiKey.API_VERSIONS
    assert response[:4] == struct.pack(">i", 7)
    return response[4 + tagged :]


def exactly(connection: socket.socket, nbytes: int) -> bytes:
    """Return the next bytes; fail if the broker closes the connection first."""
    found = b""
    while len(found) < nbytes:
        read = connection.recv(nbytes - len(found))
        assert read, f"the broker closed the connection after {len(found)} of {nbytes} bytes"
        found += read
    return found


@pytest.fixture
async def known(start: StartBroker) -> tuple[str, UUID]:
    """Kafka address of a broker with the topic `orders`, and the id of the topic."""
    running = await start()
    assert running.addresses.data is not None
    async with Calls(running.addresses.data) as calls:
        identifier = await calls.create("orders", partitions=2)
    return kafka_address(running), UUID(identifier)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
async def test_every_version_is_answered(known: tuple[str, UUID], api: Api) -> None:
    """A request with known and unknown topics, groups and partitions is answered in every version of an API."""
    address, topic_id = known
    request, _ = MESSAGES[api.key]

    def simple(name: str, kind: str) -> st.SearchStrategy[Any]:
        kinds: dict[str, st.SearchStrategy[Any]] = {
            "string": st.sampled_from(["orders", "billing", "", "n\u00e4me"]),
            "uuid": st.sampled_from([topic_id, UUID(int=0), UUID(int=7)]),
            "bool": st.booleans(),
            "float64": st.sampled_from([0.0, 1.0]),
            "bytes": st.just(b""),
            "records": st.just(b""),
            "bitfield": st.just(set()),
        }
        # A produce request with acks=0 has no response.
        return st.just(1) if name == "Acks" else kinds.get(kind, st.sampled_from([-1, 0, 1]))

    def check(version: int) -> None:
        reader = entity_reader(load_response_schema(api.key, version))

        @settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate])
        @given(filled(request.json, version, simple))
        def answered(values: dict[str, Any]) -> None:
            response = call(
                address, api, version, bytes(message_of(request, version, values).encode(version=version))
            )
            _, size = reader(response, 0)

            assert size == len(response)

        answered()

    for version in range(api.first, api.last + 1):
        await asyncio.to_thread(check, version)
