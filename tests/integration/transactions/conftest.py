"""A broker with a topic, for tests that call it over HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from broker_kit import Calls
from cluster_kit import Cluster

OneBroker: TypeAlias = Callable[[], AbstractAsyncContextManager[Calls]]


@pytest.fixture
def one_broker(tmp_path: Path) -> OneBroker:
    """Return the function that starts a broker with the topic orders and gives calls to the broker."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Calls]:
        cluster = await Cluster.open(tmp_path)
        try:
            await cluster.start(1)
            async with Calls(str(cluster.brokers[1].addresses.data)) as api:
                await api.create("orders")
                yield api
        finally:
            await cluster.close()

    return opened


@pytest.fixture
async def api(one_broker: OneBroker) -> AsyncIterator[Calls]:
    """Yield calls to a broker with the topic orders."""
    async with one_broker() as calls:
        yield calls
