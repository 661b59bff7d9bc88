"""Start and stop of a broker, as observed by its clients."""

import asyncio

import pytest
from structlog.testing import capture_logs

from fairlead_api.batch.batches import decode_records
from fairlead_broker.clock import SystemClock
from fairlead_broker.runtime import BrokerState
from fairlead_broker.server.connections.bound_socket import ListenError
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Telemetry
from fairlead_broker.wiring.listeners import bind_listeners, start_ops
from refusals import raises

RECORDS = "/v1/topics/flights/partitions/0/records"
BATCHES = "application/vnd.fairlead.batches"


async def test_ops_answers_before_recovery(cluster, tmp_path) -> None:
    """A broker that has not recovered is alive, not ready, shows metrics, and accepts no clients."""
    settings = BrokerSettings(
        data=tmp_path / "data", listen="127.0.0.1:0", peer_listen="127.0.0.1:0", ops_listen="127.0.0.1:0"
    )
    parts = bind_listeners(settings.listeners, Telemetry(), SystemClock(), BrokerState(), {})
    await start_ops(parts)
    try:
        ops = await cluster.client(parts.bound.addresses.ops, http1=True)
        statuses = [
            (await ops.get(path)).status for path in ("/healthz", "/readyz", "/metrics", "/v1/topics")
        ]
        host, _, port = parts.bound.addresses.data.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
    finally:
        await parts.listeners.stop()

    assert statuses == [200, 503, 200, 404]


async def test_a_stop_is_logged_with_its_duration(cluster) -> None:
    """A broker logs that it is stopping and that it has stopped, with the seconds that the stop took."""
    broker = await cluster.start()
    with capture_logs() as events:
        await cluster.stop(broker)
    told = [event for event in events if event["event"] in {"broker is stopping", "broker has stopped"}]

    assert [event["event"] for event in told] == ["broker is stopping", "broker has stopped"]
    assert 0 < told[1]["seconds"] < 10


async def test_an_idle_connection_outlives_its_place_in_a_load_balancer(cluster) -> None:
    """A connection over HTTP/1.1 stays open for longer than 60 s, the time for which a load balancer reuses it."""
    broker = await cluster.start(limits={"header_seconds_max": 0.2})
    host, _, port = broker.addresses.data.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/versions HTTP/1.1\r\nhost: localhost\r\n\r\n")
    async with asyncio.timeout(10):
        answered = await reader.read()
    writer.close()

    assert answered.startswith(b"HTTP/1.1 200 ")
    assert BrokerSettings().limits.header_seconds_max > 60


async def test_two_brokers_on_one_port(cluster, broker, api) -> None:
    """A second broker on a port in use fails; the error names address and reason, and the first broker continues."""
    with raises(ListenError, broker.addresses.data):
        await cluster.start("other", listen=broker.addresses.data)

    assert (await api.get("/v1/versions")).status == 200


async def test_restart_on_the_same_port(cluster, batch_of) -> None:
    """A broker restarts at the same address at once, with the acknowledged records."""
    broker = await cluster.start()
    address = broker.addresses.data
    api = await cluster.client(address)
    await api.create("flights")
    await api.post_batch(RECORDS, batch_of(b"a"))
    await cluster.stop(broker)
    await cluster.start(listen=address)
    again = await cluster.client(address)

    assert [record.value for record in decode_records((await again.get(RECORDS, accept=BATCHES)).body)] == [
        b"a"
    ]


async def test_stop_under_load_keeps_acknowledged_records(cluster, batch_of) -> None:
    """A broker that stops under load answers or refuses each request and keeps every acknowledged record."""
    broker = await cluster.start()
    api = await cluster.client(broker.addresses.data)
    await api.create("flights")
    acknowledged: list[bytes] = []
    codes: set[str] = set()
    enough = asyncio.Event()

    async def produce(worker: int) -> None:
        for number in range(100_000):
            value = b"%d-%d" % (worker, number)
            try:
                answer = await api.post_batch(RECORDS, batch_of(value))
            except Exception:  # noqa: BLE001 - any error of a client after the listener is closed
                return
            if answer.status != 200:
                codes.add(answer.code)
                return
            acknowledged.append(value)
            if len(acknowledged) > 50:
                enough.set()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for worker in range(8):
            group.create_task(produce(worker))
        await enough.wait()
        await cluster.stop(broker)
    again = await cluster.start()
    reader = await cluster.client(again.addresses.data)
    answer = await reader.get(f"{RECORDS}?max_bytes=50000000", accept=BATCHES)
    stored = [record.value for record in decode_records(answer.body)]

    assert set(acknowledged) <= set(stored)
    assert len(set(stored)) == len(stored)
    assert codes <= {"shutting_down"}


async def test_head_of_a_fetch(api, batch_of) -> None:
    """HEAD requests for records are answered with headers only."""
    await api.create("flights")
    await api.post_batch(RECORDS, batch_of(b"a"))
    answer = await api.call("HEAD", RECORDS)

    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["fairlead-high-watermark"] == "1"


async def test_the_head_of_a_request_has_the_limit_of_the_setting(cluster) -> None:
    """The limit on the size of a request's head also applies over HTTP/1.1, on the data and peer listeners."""
    broker = await cluster.start(limits={"header_bytes_max": 8 << 10})
    addresses = (broker.addresses.data, broker.addresses.peer)
    calls = [await cluster.client(address, http1=True) for address in addresses]
    answers = [await each.get("/v1/versions", x_long="a" * (9 << 10)) for each in calls]

    assert [answer.status for answer in answers] == [431] * 2
    assert [(each.code, each.json["limit_bytes"]) for each in answers] == [("headers_too_large", 8 << 10)] * 2
