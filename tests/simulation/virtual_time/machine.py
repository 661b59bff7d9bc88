"""The machine of one broker: its disk, and its process if it runs."""

from __future__ import annotations

import asyncio
import contextvars
import random
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import structlog

from fairlead_api.identifiers import TimestampUs
from fairlead_broker.certificates.material import Side
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.runtime import BrokerState
from fairlead_broker.runtime.lifecycle.cluster_entry import Advertised
from fairlead_broker.server.listeners import BoundSockets
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Telemetry
from fairlead_broker.wiring.broker import open_broker
from fairlead_broker.wiring.listeners import listener_parts
from fairlead_broker.wiring.start import RunningBroker, serve
from lying_disk import LyingDisk
from virtual_time.coordination import FarCoordination, StoreWeather
from virtual_time.life import LIFE, Life
from virtual_time.loop import VirtualLoop
from virtual_time.network import Served, VirtualNetwork

EPOCH_US = 1_800_000_000_000_000
DATA = Path("/data")


class VirtualClock:
    """A clock with the loop's time, whose wall clock may be wrong."""

    def __init__(self, loop: VirtualLoop, error: Callable[[float], float] = lambda now: 0.0) -> None:
        """`error` returns the number of seconds by which the wall clock is ahead at a given time of the loop."""
        self._loop = loop
        self._error = error

    def now_us(self) -> TimestampUs:
        """Return the microseconds since 1970 according to the wall clock."""
        now = self._loop.time()
        return TimestampUs(EPOCH_US + int((now + self._error(now)) * 1e6))

    def monotonic(self) -> float:
        """Return the time of the event loop in seconds."""
        return self._loop.time()


class VirtualListener:
    """A listener that serves an application at an address while it is started."""

    def __init__(self, application: Callable[..., Any], address: str, network: VirtualNetwork) -> None:
        self._application = application
        self._address = address
        self._network = network

    async def start(self) -> None:
        """Start serving."""
        life = LIFE.get()
        assert life is not None
        self._network.served[self._address] = Served(self._application, life, contextvars.copy_context())

    async def renew(self, material: Any) -> None:
        """Do nothing, because the virtual listener has no certificate."""

    async def stop(self, timeout_seconds: float = 0.0) -> None:
        """Stop serving."""
        del timeout_seconds
        self._network.served.pop(self._address, None)


class VirtualAddress(str):
    """Address of a listener without a socket."""

    __slots__ = ()
    port = 1

    def ignore(self, networks: Collection[str]) -> None:
        """Ignore nothing: a simulated client needs no connection."""

    def close(self) -> None:
        """Release nothing."""


class Machine:
    """A broker that can be started, stopped and killed, and can lose power."""

    def __init__(
        self,
        number: int,
        store: EmbeddedCoordination,
        weather: StoreWeather,
        network: VirtualNetwork,
        chance: random.Random,
        settings: dict[str, Any],
        clock_error: Callable[[float], float],
    ) -> None:
        """`clock_error`: error of the machine's wall clock, as in `VirtualClock`."""
        self.number = number
        self.name = f"broker-{number}"
        self.disk = LyingDisk()
        self.disk.make_folder(DATA)
        self.life: Life | None = None
        self.running: RunningBroker | None = None
        self.coordination: FarCoordination | None = None
        self.boot = 1
        """Number of times the machine has booted, which is a part of a directory's residence."""
        self.refusals: list[str] = []
        """Errors of starts that did not result in a running broker."""
        self._store, self._weather, self._network = store, weather, network
        self._chance = chance
        self._settings = settings
        self._clock_error = clock_error
        self._starts = 0

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return f"http://{self.name}.data:1"

    @property
    def alive(self) -> bool:
        """Return whether a process runs, ready or not."""
        return self.life is not None and not self.life.dead

    def start(self) -> asyncio.Task[None]:
        """Start a process; the task ends when the broker is ready, or with the error that the start raised."""
        assert not self.alive
        self._starts += 1
        life = self.life = Life(self.name, f"boot-{self.number}-{self.boot}")
        context = contextvars.copy_context()
        context.run(LIFE.set, life)
        loop = asyncio.get_running_loop()
        start = loop.create_task(self._run(life), context=context)
        return loop.create_task(self._started(start, life))

    async def _started(self, start: asyncio.Task[None], life: Life) -> None:
        await asyncio.wait([start])
        error = None if start.cancelled() else start.exception()
        if error is not None:
            # A process whose start fails with any error is started again.
            self.refusals.append(f"{type(error).__name__}: {error}")
            if not life.dead:
                self.kill()

    async def _run(self, life: Life) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock = VirtualClock(loop, self._clock_error)
        log = structlog.get_logger()
        settings = BrokerSettings(
            id=self.number, data=DATA, listen="127.0.0.1:0", peer_listen="127.0.0.1:0",
            ops_listen="127.0.0.1:0", hosts=f"{self.name}.data", **self._settings,
        )  # fmt: skip
        telemetry = Telemetry(log)
        self.coordination = FarCoordination(self._store.connect(), self._weather, life)
        data, peer, ops = (VirtualAddress(f"{self.name}.{each}:1") for each in ("data", "peer", "ops"))
        parts = listener_parts(
            settings.listeners,
            telemetry,
            clock,
            BrokerState(),
            {},
            BoundSockets(((settings.listeners.data[0], data),), {Side.PEER: peer, Side.OPS: ops}),  # type: ignore[arg-type, dict-item]
            lambda application, bound, *_: VirtualListener(application, str(bound), self._network),
        )
        broker = await open_broker(
            settings,
            telemetry,
            clock,
            release="0",
            new_id=lambda: str(uuid.UUID(int=self._chance.getrandbits(128), version=4)),
            advertised=Advertised(str(data), str(peer), str(ops)),
            storage=self.disk,
            coordination=self.coordination,
        )
        self.running = await serve(broker, parts)

    async def stop(self) -> None:
        """Stop the process cleanly."""
        running, life = self.running, self.life
        assert running is not None
        assert life is not None
        context = contextvars.copy_context()
        context.run(LIFE.set, life)
        await asyncio.get_running_loop().create_task(running.stop(), context=context)
        self._end()
        self.disk = self.disk.restart()

    def kill(self) -> None:
        """Kill the process, and keep all written bytes."""
        self._end()
        self.disk = self.disk.restart()

    def cut_power(self) -> None:
        """Kill the process, and lose some unsynced bytes."""
        self._end()
        self.boot += 1
        self.disk = self.disk.cut(self._chance)

    def _end(self) -> None:
        assert self.life is not None
        # The disk of the ended process ignores all further operations.
        self.disk.cut_at = self.disk.operations
        self.life.end()
        for address in [each for each in self._network.served if each.startswith(f"{self.name}.")]:
            del self._network.served[address]
        self.running = None
