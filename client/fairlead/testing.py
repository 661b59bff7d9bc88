"""A broker for your tests: in your process, on a free port, with the real log, the real HTTP and the real rules.

    async with fairlead.testing.cluster() as bootstrap:
        async with Producer(bootstrap) as producer:
            await producer.send_and_wait("flights", b"UA1545")

Nothing is imitated: it is the broker of the extra `broker` over embedded coordination, on a data directory that is
removed at the end. `running_cluster` is the same for tests without an event loop. As a pytest fixture:

    @pytest.fixture(scope="session")
    def bootstrap():
        with fairlead.testing.running_cluster() as bootstrap:
            yield bootstrap
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final, TypeAlias

from fairlead.blocking.loop_thread import LoopThread

ENTRY_POINT_GROUP: Final = "fairlead.testing"
ENTRY_POINT: Final = "cluster"

ConfigValue: TypeAlias = "str | int | float | bool"
ClusterFactory: TypeAlias = Callable[
    [int, "Path | None", Mapping[str, ConfigValue]], AbstractAsyncContextManager[str]
]
"""What the extra `broker` registers: brokers, data directory and configuration, to an address."""


class BrokerMissing(ImportError):
    """The extra that brings the broker is not installed; the message says how to install it."""


@asynccontextmanager
async def cluster(
    *, brokers: int = 1, data: Path | None = None, config: Mapping[str, ConfigValue] | None = None
) -> AsyncIterator[str]:
    """Run a cluster on this event loop and yield the address for `bootstrap`.

    `data`: a directory that is kept; otherwise a temporary one. `config`: the brokers' own values of Kafka's keys.
    Topics are created when they are produced to, unless `config` says otherwise. Raises `BrokerMissing`.
    """
    async with _factory()(brokers, data, config or {}) as bootstrap:
        yield bootstrap


@contextmanager
def running_cluster(
    *, brokers: int = 1, data: Path | None = None, config: Mapping[str, ConfigValue] | None = None
) -> Iterator[str]:
    """Run a cluster in a thread of its own and yield the address for `bootstrap`; arguments as of `cluster`."""
    thread, stack = LoopThread("test cluster"), AsyncExitStack()
    factory = _factory()
    thread.start()
    try:
        yield thread.run(stack.enter_async_context(factory(brokers, data, config or {})))
    finally:
        try:
            thread.run(stack.aclose())
        finally:
            thread.stop()


def _factory() -> ClusterFactory:
    point = next(iter(entry_points(group=ENTRY_POINT_GROUP, name=ENTRY_POINT)), None)
    try:
        if point is None:
            raise ModuleNotFoundError(ENTRY_POINT_GROUP)
        factory: ClusterFactory = point.load()
    except ModuleNotFoundError as error:
        message = "fairlead.testing runs the real broker, which comes with: pip install 'fairlead[broker]'"
        raise BrokerMissing(message) from error
    return factory
