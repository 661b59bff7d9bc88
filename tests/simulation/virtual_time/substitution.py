"""Replacements of the parts below the real brokers and the real SDK while a world runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio.to_thread
import pyreqwest.client
import structlog

import chaos_cluster
import fairlead.clock
import producing_clients
from fairlead_broker.coordination import embedded
from fairlead_broker.peers import presence
from fairlead_broker.runtime.engine import sync_rounds
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.lifecycle import cluster_entry
from virtual_time.life import LIFE
from virtual_time.loop import VirtualLoop
from virtual_time.machine import VirtualClock
from virtual_time.network import VirtualClientBuilder, VirtualNetwork, presence_connect
from virtual_time.threads import InlineExecutor, InlineStoreThread, pool_start

PAUSE_SECONDS = 0.15
"""Pause between two sends of a client, which limits the number of requests in a world."""


@contextmanager
def substituted(
    loop: VirtualLoop, network: VirtualNetwork, chance: random.Random, trace: list[str] | None = None
) -> Iterator[None]:
    """Replace threads, connections and clocks with virtual ones, and restore them at the end.

    `trace` receives the log lines; None drops them.
    """
    clock = VirtualClock(loop)
    builder = type("Builder", (VirtualClientBuilder,), {"network": network})
    start = pool_start(chance, lambda: 0.2 if chance.random() < 0.002 else 0.0)
    places: list[tuple[Any, str, Any]] = [
        (pyreqwest.client, "ClientBuilder", builder),
        (chaos_cluster, "ClientBuilder", builder),
        (presence, "connect", presence_connect(network)),
        (DiskPool, "_start", start),
        (anyio.to_thread, "run_sync", _run_here),
        (sync_rounds, "ThreadPoolExecutor", InlineExecutor),
        (embedded, "StoreThread", InlineStoreThread),
        (cluster_entry.ClusterEntry, "_present_residence", _residence),
        (fairlead.clock, "monotonic", loop.time),
        (fairlead.clock, "now_ns", lambda: int(clock.now_us()) * 1000),
        (fairlead.clock, "chance", chance.random),
        (fairlead.clock, "new_id", lambda: f"{chance.getrandbits(128):032x}"),
        (producing_clients, "PAUSE_SECONDS", PAUSE_SECONDS),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in places]
    logging_before = structlog.get_config()
    structlog.configure(processors=[_Tracing(loop, trace)], logger_factory=structlog.ReturnLoggerFactory())
    for place, name, value in places:
        setattr(place, name, value)
    try:
        yield
    finally:
        structlog.configure(**logging_before)
        for place, name, value in before:
            setattr(place, name, value)


class _Tracing:
    """A logger that records log lines with their time and their process."""

    def __init__(self, loop: VirtualLoop, trace: list[str] | None) -> None:
        self._loop = loop
        self._trace = trace

    def __call__(self, logger: object, level: str, event: dict[str, Any]) -> str:
        life = LIFE.get()
        if self._trace is not None:
            more = " ".join(
                f"{key}={value}" for key, value in event.items() if key not in {"event", "broker"}
            )
            who = life.name if life else ""
            self._trace.append(f"{self._loop.time():9.3f} {who:9} {level}: {event['event']} {more}")
        return ""


def _residence(entry: cluster_entry.ClusterEntry) -> str | None:
    del entry
    life = LIFE.get()
    return None if life is None else life.residence


async def _run_here(call: Callable[..., Any], *arguments: Any, **named: object) -> Any:
    del named
    return call(*arguments)
