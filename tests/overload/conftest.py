"""A broker as a process of its own, and how large the attacks on it are."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from overload_kit import BrokerUnderLoad

StartBroker = Callable[..., Awaitable[BrokerUnderLoad]]


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the run is `make prove`: full numbers, and figures kept for the documentation."""
    return request.config.getoption("--hypothesis-profile") == "prove"


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartBroker]:
    """Starts a broker with small limits, given by name, and ends it."""
    brokers: list[BrokerUnderLoad] = []

    async def started(**limits: object) -> BrokerUnderLoad:
        broker = BrokerUnderLoad(tmp_path, **limits)
        brokers.append(broker)
        await broker.start()
        return broker

    yield started
    for broker in brokers:
        broker.kill()
