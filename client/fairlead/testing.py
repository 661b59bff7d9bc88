"""A broker for your tests: in the test process, on a free port, with the real log, HTTP interface and rules.

    async with fairlead.testing.cluster() as bootstrap:
        async with Producer(bootstrap) as producer:
            await producer.send_and_wait("flights", b"UA1545")

Nothing is mocked: the broker from the extra `broker` runs with embedded coordination on a data directory that is
removed at the end. `running_cluster` starts a broker for tests without an event loop. As a pytest fixture:

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
"""Function that the extra `broker` registers: its arguments are broker count, data directory and configuration, and it
yields an address."""


class BrokerMissing(ImportError):
    """The extra that contains the broker is not installed; the message contains the command that installs the extra."""


@asynccontextmanager
async def cluster(
    *, brokers: int = 1, data: Path | None = None, config: Mapping[str, ConfigValue] | None = None
) -> AsyncIterator[str]:
    """Run a cluster on this event loop and yield the address for `bootstrap`.

    `data` is a directory that is not removed at the end; by default a temporary directory is used. `config` sets
    configuration keys, which have Kafka's names, on the brokers. Topics are created when a producer first writes to
    them, unless `config` disables the automatic creation. Raises `BrokerMissing`.
    """
    async with _factory()(brokers, data, config or {}) as bootstrap:
        yield bootstrap


@contextmanager
def running_cluster(
    *, brokers: int = 1, data: Path | None = None, config: Mapping[str, ConfigValue] | None = None
) -> Iterator[str]:
    """Run a cluster in a thread and yield the address for `bootstrap`; the arguments are those of `cluster`."""
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
