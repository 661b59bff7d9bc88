"""A broker in a separate process, and the sizes of the attacks."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from overload_kit import BrokerUnderLoad

StartBroker = Callable[..., Awaitable[BrokerUnderLoad]]


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Return whether the run is `make prove`, which uses full numbers and writes figures for the documentation."""
    return request.config.getoption("--hypothesis-profile") == "prove"


@pytest.fixture(scope="session")
def patience(full: bool) -> float:
    """Return the factor for bounds of latencies: outside `make prove`, other tests use the cores at the same time."""
    return 1.0 if full else 10.0


@pytest.fixture
async def start(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Yield a function that starts a broker with small limits, given by name; stop the broker at the end.

    With the parameter `enforce`, brokers enforce access rules, so that clients without a token are strangers.
    """
    brokers: list[BrokerUnderLoad] = []

    async def started(**limits: object) -> BrokerUnderLoad:
        broker = BrokerUnderLoad(tmp_path, **limits)
        if getattr(request, "param", "open") == "enforce":
            broker.enforce()
        brokers.append(broker)
        await broker.start()
        return broker

    yield started
    for broker in brokers:
        broker.kill()
