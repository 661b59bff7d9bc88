"""The watch over other brokers: whose lease a broker ends, and whose lease it never ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import msgspec
import pytest

from fairlead_api.identifiers import BrokerId
from fairlead_broker.controlling.failure_watch import FailureWatch
from fairlead_broker.coordination.protocol import CoordinationUnavailable
from fairlead_broker.peers.presence import PeerRefuses, PeerUnreachable
from fairlead_broker.registry.records import Addresses, BrokerState
from waiting import pause


class Ports:
    """Ports of brokers, which accept connections until the test closes them."""

    def __init__(self) -> None:
        """Accept every connection."""
        self.answers: dict[str, type[Exception]] = {}
        self.open: set[Connection] = set()
        self.attempts: list[str] = []

    async def connect(self, address: str) -> Any:
        """Connect to an address, or raise the error set for the address."""
        self.attempts.append(address)
        if address in self.answers:
            raise self.answers[address](address)
        return Connection(self, address)

    def close(self, address: str, answer: type[Exception] = PeerRefuses) -> None:
        """Break the connections to an address, and raise an error for later connections."""
        self.answers[address] = answer
        for connection in tuple(self.open):
            if connection.address == address:
                connection.lost.set()


class Connection:
    """A connection that the test breaks."""

    def __init__(self, ports: Ports, address: str) -> None:
        """Open the connection."""
        self.ports, self.address, self.lost = ports, address, asyncio.Event()

    def __enter__(self) -> Self:
        self.ports.open.add(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.ports.open.discard(self)

    async def until_lost(self, seconds_max: float) -> None:
        """Wait until the test breaks the connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await self.lost.wait()


def port(broker: int) -> str:
    """Return the address of a broker."""
    return f"broker-{broker}:1"


@pytest.fixture
def ports() -> Ports:
    """Return the ports of all brokers."""
    return Ports()


async def start(cluster: Any, ports: Ports, *brokers: int, watching: tuple[int, ...]) -> None:
    """Start brokers; the brokers in `watching` are connected to all others before this function returns."""
    for broker in brokers:
        addresses = Addresses(data="-", peer=port(broker), ops="-")
        await cluster.add(broker, addresses=addresses, peer_secret_hash=f"process of {broker}")
    await cluster.until(lambda metadata: metadata.controller)
    for broker in watching:
        life = cluster.lives[broker]
        watch = FailureWatch(
            life.coordination, life.mirror, lambda life=life: life.membership, life.clock, ports.connect
        )
        life.tasks.append(cluster.tasks.create_task(watch.run()))
    async with asyncio.timeout(30):
        while len(ports.open) < len(watching) * (len(brokers) - 1):
            await pause(0.001)
    cluster.clock.seconds += 5


def gone(broker: int) -> Callable[[Any], bool]:
    """Return a condition that holds when a broker is not registered."""
    return lambda metadata: BrokerId(broker) not in metadata.brokers


def lose(cluster: Any, broker: int) -> None:
    """Cancel the tasks of a broker, whose lease continues."""
    for task in cluster.lives.pop(broker).tasks:
        task.cancel()


async def test_the_controller_ends_the_lease_of_an_ended_broker(cluster: Any, ports: Ports) -> None:
    """The controller removes the registration of a broker whose port refuses, long before its lease ends."""
    await start(cluster, ports, 1, 2, 3, watching=(1,))
    lose(cluster, 3)
    ports.close(port(3))
    await cluster.until(gone(3))

    assert set(cluster.metadata.brokers) == {1, 2}
    assert cluster.metadata.controller.value.broker == 1


async def test_another_broker_ends_the_controllers_lease(cluster: Any, ports: Ports) -> None:
    """A broker that is not the controller ends the controller's lease, and the term with it."""
    await start(cluster, ports, 1, 2, watching=(2,))
    lose(cluster, 1)
    ports.close(port(1))
    await cluster.until(lambda metadata: metadata.controller and metadata.controller.value.broker == 2)

    assert set(cluster.metadata.brokers) == {2}


@pytest.mark.parametrize(
    ("answer", "changes", "watching"),
    [(PeerUnreachable, {}, 1), (PeerRefuses, {"state": BrokerState.STOPPING}, 1), (PeerRefuses, {}, 2)],
    ids=["a lost machine", "a stopping broker", "watched by another broker than the controller"],
)
async def test_these_leases_end_by_themselves(
    cluster: Any, ports: Ports, answer: type[Exception], changes: dict[str, Any], watching: int
) -> None:
    """A silent machine, a stopping broker, and a broker that the controller does not watch keep their registrations."""
    await start(cluster, ports, 1, 2, 3, watching=(watching,))
    if changes:
        await cluster.lives[3].membership.update(lambda before: msgspec.structs.replace(before, **changes))
        await cluster.until(
            lambda metadata: metadata.brokers[BrokerId(3)].value.state is BrokerState.STOPPING
        )
    ports.close(port(3), answer)
    before = len(ports.attempts)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            while len(ports.attempts) < before + 4:
                await pause(0.01)

    assert BrokerId(3) in cluster.metadata.brokers


async def test_a_failed_attempt_is_repeated(cluster: Any, ports: Ports) -> None:
    """When the store does not answer, the next refused connection ends the lease."""

    def unavailable(_: Any) -> Any:
        raise CoordinationUnavailable("no answer")

    await start(cluster, ports, 1, 2, watching=(1,))
    cluster.lives[1].coordination.faults["transact"] = [unavailable]
    lose(cluster, 2)
    ports.close(port(2))
    await cluster.until(gone(2))

    assert set(cluster.metadata.brokers) == {1}
