"""The modules through which a produced batch, a heartbeat and a send pass are those in docs/explanation/rooms.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from fairlead import Producer
from fairlead_api.bodies.frames import encode_frame
from way_kit import Trace, listed, tracing

FRAMES = {"content-type": "application/vnd.fairlead.frames;v=1"}
JSON = {"content-type": "application/json"}
LOOKUPS = {
    "api/batch/extension.py": "value: the extension of a batch, which is empty on these ways",
    "api/identifiers.py": "value: types of ids and names",
    "api/partitioning.py": "value: the partition of a key",
    "api/timestamps.py": "value: a timestamp as text",
    "broker/clock.py": "value: the time",
    "broker/log/health.py": "value: the first failure of a data directory",
    "broker/log/producer_snapshots.py": "index: producers up to the end of the log",
    "broker/log/readable_log.py": "value: start, end and segments of the log",
    "broker/log/segments/entry_file.py": "index: entries with checksums",
    "broker/log/segments/indexes.py": "index: positions by offset and by time",
    "broker/log/segments/segments.py": "value: a segment",
    "broker/producers/holding.py": "index: held batches, none on these ways",
    "broker/producers/state.py": "value: the last batches of each producer",
    "broker/registry/metadata.py": "index: records of topics and partitions",
    "broker/replication/follower_progress.py": "value: reported offsets, and ends of the leader's log by time",
    "broker/runtime/meters.py": "counter: batches and records",
    "broker/server/http/request_metrics.py": "counter: requests",
    "broker/runtime/engine/loop_lag.py": "timer: delay of the event loop, on none of these ways",
    "broker/runtime/engine/time_limits.py": "timer: the limit of a wait",
    "client/connection/pool.py": "value: the current HTTP client, replaced when TLS files change",
    "client/credentials.py": "value: the header of the current token",
    "client/producing/holding.py": "value: the time until which a broker asked to wait",
}
"""Modules of values, counters and indexes, which readers understand without opening them, each with its reason."""


@pytest.fixture
def trace() -> Iterator[Trace]:
    """Yield a trace that the test switches on, and that covers the threads of a broker which starts after it."""
    with tracing(Trace(LOOKUPS)) as each:
        yield each


@pytest.fixture
def sender_trace() -> Iterator[Trace]:
    """Yield a disabled trace of the SDK and of the contract modules that the SDK calls."""
    with tracing(Trace(LOOKUPS, "client")) as each:
        yield each


async def test_the_page_lists_the_way_of_a_batch_and_of_a_heartbeat(
    trace: Trace, cluster, batch_of: Callable[..., bytes]
) -> None:
    """After first requests that open files and caches, a batch and a heartbeat pass through the listed modules only."""
    broker = await cluster.start()
    api = await cluster.client(broker.addresses.data)
    topic_id = await api.create("flights")
    meta = msgspec.json.encode({"topic_id": topic_id, "partition": 0})
    body = b"".join(bytes(part) for part in encode_frame(meta, [batch_of(b"a")]))
    member = "/v1/groups/readers/members/one"

    async def produce() -> None:
        answer = await api.call("POST", "/v1/produce?acks=all", body, FRAMES)
        assert answer.status == 200, answer

    async def beat(**fields: object) -> None:
        answer = await api.call("PUT", member, msgspec.json.encode(fields), JSON)
        assert answer.status == 200, answer

    await produce()
    batch_way = await trace.of(produce)
    await beat(member_epoch=0, topics=["flights"])
    await beat(member_epoch=1, owned=[{"topic_id": topic_id, "partitions": [0]}])
    heartbeat_way = await trace.of(lambda: beat(member_epoch=1))

    assert batch_way == set(listed("A produced batch"))
    assert heartbeat_way == {each for each in listed("A heartbeat") if not each.startswith("client/")}
    assert len(batch_way) <= 28
    assert len(listed("A heartbeat")) <= 20


async def test_the_page_lists_the_way_of_a_send(sender_trace: Trace, cluster) -> None:
    """A record passes the listed modules from `Producer.send` to the connection and back to its acknowledgement."""
    broker = await cluster.start()
    api = await cluster.client(broker.addresses.data)
    await api.create("flights")
    async with Producer(api.base) as producer:
        await (await producer.send("flights", b"x", key=b"k"))

        async def send() -> None:
            await (await producer.send("flights", b"x", key=b"k"))

        sent = await sender_trace.of(send)
    way = listed("`Producer.send`")

    assert sent == set(way)
    assert len(way) <= 10
