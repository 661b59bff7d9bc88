"""The modules that a produced batch and a heartbeat run through are those listed in docs/explanation/rooms.md."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec
import pytest

import checkout
from fairlead import Producer
from fairlead_api.bodies.frames import encode_frame

FRAMES = {"content-type": "application/vnd.fairlead.frames;v=1"}
JSON = {"content-type": "application/json"}
CALLS = 5
PACKAGES = ("api/fairlead_api", "broker/fairlead_broker", "client/fairlead")
LOOKUPS = frozenset(
    {
        "api/fairlead_api/batch/extension.py",
        "api/fairlead_api/identifiers.py",
        "api/fairlead_api/timestamps.py",
        "broker/fairlead_broker/access/caller_access.py",
        "broker/fairlead_broker/clock.py",
        "broker/fairlead_broker/coordination/membership.py",
        "broker/fairlead_broker/log/health.py",
        "broker/fairlead_broker/log/producer_snapshots.py",
        "broker/fairlead_broker/log/readable_log.py",
        "broker/fairlead_broker/log/segments/entry_file.py",
        "broker/fairlead_broker/log/segments/indexes.py",
        "broker/fairlead_broker/log/segments/segments.py",
        "broker/fairlead_broker/producers/holding.py",
        "broker/fairlead_broker/producers/state.py",
        "broker/fairlead_broker/registry/metadata.py",
        "broker/fairlead_broker/replication/end_offsets.py",
        "broker/fairlead_broker/runtime/broker.py",
        "broker/fairlead_broker/runtime/lifecycle/incarnation.py",
        "broker/fairlead_broker/runtime/meters.py",
        "broker/fairlead_broker/runtime/quota_view.py",
        "broker/fairlead_broker/runtime/security_view.py",
        "broker/fairlead_broker/server/http/access_gate.py",
        "broker/fairlead_broker/server/http/request_metrics.py",
        "client/fairlead/connection/pool.py",
        "client/fairlead/credentials.py",
        "client/fairlead/producing/delivery.py",
        "client/fairlead/producing/holding.py",
    }
)
"""Modules of values, counters and one-line look-ups, which readers understand without opening them."""


class Trace:
    """Modules of the packages in which a function was called while the trace was on."""

    def __init__(self) -> None:
        self.on = False
        self.modules: set[str] = set()
        self._module_of: dict[str, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Record a call, as the profile function of every thread."""
        if self.on and event == "call":
            name = frame.f_code.co_filename
            if name not in self._module_of:
                local = name.removeprefix(f"{checkout.ROOT}/")
                self._module_of[name] = local if local.startswith(PACKAGES) else None
            module = self._module_of[name]
            if module is not None and frame.f_code.co_name != "<module>":
                self.modules.add(module)

    async def of(self, call: Callable[[], Awaitable[None]]) -> set[str]:
        """Return the modules that every one of several calls runs through, without look-ups and periodic work."""
        ways = []
        for _ in range(CALLS):
            self.modules = set()
            self.on = True
            await call()
            self.on = False
            ways.append(self.modules - LOOKUPS)
        return set.intersection(*ways)


@contextmanager
def tracing() -> Iterator[Trace]:
    """Trace this thread and every thread that starts inside the block."""
    trace, before = Trace(), sys.getprofile()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def listed(way: str) -> list[str]:
    """Return the modules that the page lists under a heading, in their order."""
    page = (checkout.ROOT / "docs/explanation/rooms.md").read_text()
    section = re.split(r"^### ", page, flags=re.MULTILINE)
    [text] = [each for each in section if each.startswith(way)]
    packages = {"api": "api/fairlead_api", "broker": "broker/fairlead_broker", "client": "client/fairlead"}
    return [
        f"{packages[package]}/{module}"
        for package, module in re.findall(r"^\d+\. `(api|broker|client)/([\w/]+\.py)`", text, re.MULTILINE)
    ]


@pytest.fixture
def trace() -> Iterator[Trace]:
    """Yield a disabled trace, in which the broker of the test starts."""
    with tracing() as each:
        yield each


async def test_the_page_lists_the_way_of_a_batch_and_of_a_heartbeat(
    trace: Trace, cluster, batch_of: Callable[..., bytes]
) -> None:
    """After first requests that open files and caches, a batch and a heartbeat run through the listed modules only."""
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


async def test_the_page_lists_the_way_of_a_send(trace: Trace, cluster) -> None:
    """A record passes the listed modules from `Producer.send` to the connection and back to its acknowledgement."""
    broker = await cluster.start()
    api = await cluster.client(broker.addresses.data)
    await api.create("flights")
    async with Producer(api.base) as producer:
        await (await producer.send("flights", b"x", key=b"k"))

        async def send() -> None:
            await (await producer.send("flights", b"x", key=b"k"))

        sent = {each for each in await trace.of(send) if each.startswith("client/")}
    way = listed("`Producer.send`")

    assert sent == {each for each in way if each.startswith("client/")}
    assert len(way) <= 10
