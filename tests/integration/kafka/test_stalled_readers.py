"""Kafka's consumers that do not read: their answers stay within the memory for answers, and others get the room."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from pathlib import Path

import pytest

from broker_kit import FREE
from certificate_kit import Authority
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.messages import MESSAGES
from kafka_kit import SECONDS_MAX, StartBroker, kafka_address, produced
from kafka_wire import KafkaConnection, message
from waiting import LOOK_SECONDS, pause, until

ANSWERS_BYTES_MAX = 64 << 20
RECORDS = 40
"""Records of the topic, half a MiB each."""
FETCH_VERSION = 11
READERS = 6
"""Consumers that do not read: each answer takes a quarter of the memory that is left."""
LARGE_BYTES = 4 << 20
"""Size of an answer for which there is room only after connections are closed."""


def fetch_request() -> dict[str, object]:
    """Return the fields of a fetch of the topic from its start."""
    bytes_max = ANSWERS_BYTES_MAX
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": bytes_max, "log_start_offset": -1}
    return {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": bytes_max, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "topics": [{"topic": "orders", "partitions": [partition]}],
        "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip


class SilentReader:
    """Consumer that sends a fetch and does not read the answer."""

    def __init__(self, address: str, tls: ssl.SSLContext | None) -> None:
        host, _, port = address.rpartition(":")
        connecting = socket.socket()
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connecting.settimeout(20)
        connecting.connect((host, int(port)))
        self.socket = connecting if tls is None else tls.wrap_socket(connecting, server_hostname=host)

    def ask(self) -> None:
        """Send a fetch of all records."""
        request = message(MESSAGES[ApiKey.FETCH][0], FETCH_VERSION, fetch_request())
        data = struct.pack(">hhih", ApiKey.FETCH, FETCH_VERSION, 1, -1)
        data += bytes(request.encode(version=FETCH_VERSION))
        self.socket.sendall(struct.pack(">i", len(data)) + data)


@pytest.mark.parametrize("with_tls", [False, True])
async def test_consumers_that_do_not_read_leave_room_for_others(
    start: StartBroker, tmp_path: Path, with_tls: bool
) -> None:
    """Answers that are not received count until they are; when they fill the memory, their connections are closed."""
    settings: dict[str, object] = {
        "limits": {"answers_bytes_max": ANSWERS_BYTES_MAX, "crowded_stall_seconds_max": 1.0}
    }
    tls = None
    if with_tls:
        authority = Authority.make()
        settings["tls"] = authority.issue().write(tmp_path / "tls", authority)
        tls = ssl.create_default_context(cafile=tmp_path / "tls" / "ca.crt")
        settings |= dict.fromkeys(("listen", "peer_listen", "ops_listen"), f"http://{FREE}")
    running = await start(**settings)
    address, budget = kafka_address(running), running.broker.answers
    librdkafka = {"security.protocol": "SSL", "ssl.ca.location": f"{tmp_path}/tls/ca.crt"} if with_tls else {}
    record = {"value": random.Random(1).randbytes(512 << 10)}
    await asyncio.to_thread(produced, address, "orders", [record] * RECORDS, **librdkafka)
    readers = []
    for _ in range(READERS):
        readers.append(await asyncio.to_thread(SilentReader, address, tls))
        await asyncio.to_thread(readers[-1].ask)
    await until(lambda: ANSWERS_BYTES_MAX // 2 < budget.taken <= ANSWERS_BYTES_MAX)
    rest = budget.hold()
    async with KafkaConnection.open(address, tls) as good, asyncio.timeout(SECONDS_MAX):
        while await answer_bytes(good) < LARGE_BYTES:
            unread = budget.taken - rest.nbytes
            rest.resize(ANSWERS_BYTES_MAX if unread > ANSWERS_BYTES_MAX // 2 else 0)
            await pause(LOOK_SECONDS)
    left = running.broker.telemetry.registry.get_sample_value("fairlead_kafka_connections")
    for reader in readers:
        reader.socket.close()
    rest.release()
    await until(lambda: budget.taken == 0)

    assert left is not None
    assert left < READERS


async def answer_bytes(connection: KafkaConnection) -> int:
    """Fetch from the start of the topic, and return the number of bytes of records."""
    answer = await connection.ask(ApiKey.FETCH, FETCH_VERSION, **fetch_request())
    return sum(len(partition.records) for topic in answer.responses for partition in topic.partitions)
