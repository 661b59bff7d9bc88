"""Sockets and running listeners of a broker, and the order in which they close.

`wiring.listeners` binds the sockets, builds the application of each listener, and starts the listeners here. The module
must not depend on the application of a listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from fairlead_broker.certificates.material import Material, Side
from fairlead_broker.server.connections.bound_socket import BoundSocket
from fairlead_broker.server.ops_listener import OpsListener
from fairlead_broker.settings import Endpoint as Address
from fairlead_broker.settings import ListenerSettings

# When the listeners stop, the broker has already answered every call; only slow clients are still receiving answers.
STOP_SECONDS_MAX: Final = 4.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the listeners, each ``host:port``."""

    data: str | None = None
    """First address of the data listener without TLS; None if the listener has no address without TLS."""
    data_tls: str | None = None
    """First address of the data listener with TLS; None if the listener has no address with TLS."""
    peer: str | None = None
    ops: str | None = None
    external: str | None = None
    """Address of the data listener for clients outside the brokers' network."""
    kafka: str | None = None
    """Address for clients of Kafka's protocol."""


@dataclass(frozen=True, slots=True)
class BoundSockets:
    """Bound sockets of all listeners; no call is served yet."""

    data: tuple[tuple[Address, BoundSocket], ...]
    """Addresses of the data listener, followed by the address for clients outside the brokers' network."""
    others: Mapping[Side, BoundSocket]
    """Sockets of the peer and the ops listener."""
    external: Address | None = None
    kafka: BoundSocket | None = None
    """Socket of the listener for Kafka's protocol; None if the broker has no such listener."""

    @property
    def addresses(self) -> Addresses:
        """Bound addresses, with their actual ports."""
        data: dict[str, str] = {}
        others = {side.value: str(bound) for side, bound in self.others.items()}
        for address, bound in self.data:
            if address is self.external:
                others["external"] = str(bound)
            else:
                data.setdefault(address.scheme, str(bound))
        if self.kafka is not None:
            others["kafka"] = str(self.kafka)
        return Addresses(data=data.get("http"), data_tls=data.get("https"), **others)

    def close(self) -> None:
        """Release all addresses."""
        kafka = () if self.kafka is None else (self.kafka,)
        for bound in (*(bound for _, bound in self.data), *self.others.values(), *kafka):
            bound.close()


def bind(settings: ListenerSettings) -> BoundSockets:
    """Bind all addresses so that the broker can register them.

    Raises ListenError; no address remains bound after the error.
    """
    with ExitStack() as bound:

        def bind_one(name: str, address: Address) -> BoundSocket:
            found = BoundSocket(name, address.host, address.port)
            bound.callback(found.close)
            return found

        external = () if settings.external is None else (settings.external,)
        sockets = BoundSockets(
            tuple((address, bind_one(Side.DATA.value, address)) for address in (*settings.data, *external)),
            {
                Side.PEER: bind_one(Side.PEER.value, settings.peer),
                Side.OPS: bind_one(Side.OPS.value, settings.ops),
            },
            settings.external,
            None if settings.kafka is None else bind_one("kafka", settings.kafka),
        )
        bound.pop_all()
    return sockets


class StoppingListener(Protocol):
    """Listener of any protocol."""

    async def start(self) -> None:
        """Listen and accept connections."""
        ...

    async def stop(self, timeout_seconds: float) -> None:
        """Stop accepting connections, and wait for requests in progress."""
        ...


class ServingListener(StoppingListener, Protocol):
    """Listener for clients or for other brokers, with a certificate that can be replaced."""

    async def renew(self, material: Material) -> None:
        """Serve new connections with this certificate."""
        ...


class Listeners:
    """Started listeners of one broker."""

    def __init__(self, bound: BoundSockets) -> None:
        self._serving: list[tuple[Side, bool, ServingListener]] = []
        """Data and peer listeners, each with a flag that states whether the listener has TLS."""
        self._ops: list[OpsListener] = []
        self._kafka: list[ServingListener] = []
        self.closing = AsyncExitStack()
        """Stack of the ops listener and the tasks for listeners, which are closed in reverse order after the data and
        peer listeners."""
        self.closing.callback(bound.close)

    async def start_ops(self, listener: OpsListener) -> None:
        """Start the ops listener, which closes last."""
        self._ops.append(listener)
        self.closing.push_async_callback(listener.stop)
        await listener.start()

    async def start(self, side: Side, listener: ServingListener, *, tls: bool) -> None:
        """Start a data or peer listener."""
        self._serving.append((side, tls, listener))
        await listener.start()

    async def start_kafka(self, listener: ServingListener) -> None:
        """Start the listener for Kafka's protocol, which closes together with the data listener."""
        self._kafka.append(listener)
        await listener.start()

    async def renew(self, side: Side, material: Material) -> None:
        """Use a new certificate for all connections that the listeners of a side accept from now on."""
        serving = [listener for each, tls, listener in self._serving if each is side and tls]
        ops = self._ops if side is Side.OPS else ()
        kafka = self._kafka if side is Side.DATA else ()
        await asyncio.gather(*(listener.renew(material) for listener in (*serving, *ops, *kafka)))

    async def stop_side(self, side: Side, seconds_max: float) -> None:
        """Stop accepting connections to the data or the peer listener, and wait for answers in progress."""
        serving = [listener for each, _, listener in self._serving if each is side]
        await asyncio.gather(*(listener.stop(seconds_max) for listener in serving))

    async def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Stop accepting connections, wait for answers in progress, and close the listeners, the ops listener last."""
        await asyncio.gather(
            *(self.stop_side(side, seconds_max) for side in (Side.DATA, Side.PEER)),
            *(listener.stop(seconds_max) for listener in self._kafka),
        )
        await self.closing.aclose()
