"""A broker for your tests: in the test process, on a free port, with the real log, HTTP interface and rules.

    async with fairlead.testing.cluster() as bootstrap:
        async with Producer(bootstrap) as producer:
            await producer.send_and_wait("flights", b"UA1545")

Nothing is mocked: the broker from the extra `broker` runs with embedded coordination on a data directory that is
removed at the end. `running_cluster` starts a broker for tests without an event loop. With `secure=True` the brokers
use TLS and refuse every operation that no ACL allows:

    async with fairlead.testing.cluster(secure=True) as secured:
        async with Producer(**secured.arguments) as producer:
            await producer.send_and_wait("flights", b"UA1545")

As a pytest fixture:

    @pytest.fixture(scope="session")
    def bootstrap():
        with fairlead.testing.running_cluster() as bootstrap:
            yield bootstrap
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypedDict, overload

from fairlead.blocking.loop_thread import LoopThread

ENTRY_POINT_GROUP: Final = "fairlead.testing"
ENTRY_POINT: Final = "cluster"

ConfigValue: TypeAlias = "str | int | float | bool"
_Found: TypeAlias = "tuple[str, Path | None, Path | None]"
ClusterFactory: TypeAlias = Callable[
    [int, "Path | None", Mapping[str, ConfigValue], bool], AbstractAsyncContextManager[_Found]
]
"""Function that the extra `broker` registers. The arguments of the function are the number of brokers, the data
directory, the configuration and whether the brokers are secure. The function yields an address and the files of a
secure cluster."""


class ClientArguments(TypedDict):
    """Arguments for a client that connects to a secure cluster."""

    bootstrap: str
    ca_file: Path
    token_file: Path


@dataclass(frozen=True, slots=True)
class SecureCluster:
    """Address of a secure cluster, and the files that a client needs."""

    bootstrap: str
    ca_file: Path
    """Authority that signed the brokers' certificate."""
    token_file: Path
    """Token of the administrator, `user:admin`, which is allowed every operation."""

    @property
    def arguments(self) -> ClientArguments:
        """Arguments of the administrator's clients; for another principal, give its token as `token_file`."""
        return {"bootstrap": self.bootstrap, "ca_file": self.ca_file, "token_file": self.token_file}


class BrokerMissing(ImportError):
    """The extra that contains the broker is not installed; the message contains the command that installs the extra."""


@overload
def cluster(
    *,
    brokers: int = ...,
    data: Path | None = ...,
    config: Mapping[str, ConfigValue] | None = ...,
    secure: Literal[False] = ...,
) -> AbstractAsyncContextManager[str]: ...


@overload
def cluster(
    *,
    brokers: int = ...,
    data: Path | None = ...,
    config: Mapping[str, ConfigValue] | None = ...,
    secure: Literal[True],
) -> AbstractAsyncContextManager[SecureCluster]: ...


def cluster(
    *,
    brokers: int = 1,
    data: Path | None = None,
    config: Mapping[str, ConfigValue] | None = None,
    secure: bool = False,
) -> AbstractAsyncContextManager[str | SecureCluster]:
    """Run a cluster on this event loop and yield the address for `bootstrap`, or with `secure` a `SecureCluster`.

    `data` is a directory that is not removed at the end; by default a temporary directory is used. `config` sets
    configuration keys, which have Kafka's names, on the brokers. Topics are created when a producer first writes to
    them, unless `config` disables the automatic creation. Raises `BrokerMissing`.
    """
    return _cluster(brokers, data, config or {}, secure=secure)


@asynccontextmanager
async def _cluster(
    brokers: int, data: Path | None, config: Mapping[str, ConfigValue], *, secure: bool
) -> AsyncIterator[str | SecureCluster]:
    async with _factory()(brokers, data, config, secure) as (bootstrap, ca_file, token_file):
        if ca_file is None or token_file is None:
            yield bootstrap
        else:
            yield SecureCluster(bootstrap, ca_file, token_file)


@overload
def running_cluster(
    *,
    brokers: int = ...,
    data: Path | None = ...,
    config: Mapping[str, ConfigValue] | None = ...,
    secure: Literal[False] = ...,
) -> AbstractContextManager[str]: ...


@overload
def running_cluster(
    *,
    brokers: int = ...,
    data: Path | None = ...,
    config: Mapping[str, ConfigValue] | None = ...,
    secure: Literal[True],
) -> AbstractContextManager[SecureCluster]: ...


def running_cluster(
    *,
    brokers: int = 1,
    data: Path | None = None,
    config: Mapping[str, ConfigValue] | None = None,
    secure: bool = False,
) -> AbstractContextManager[str | SecureCluster]:
    """Run a cluster in a thread; the arguments and the yielded value are those of `cluster`."""
    return _running_cluster(brokers, data, config or {}, secure=secure)


@contextmanager
def _running_cluster(
    brokers: int, data: Path | None, config: Mapping[str, ConfigValue], *, secure: bool
) -> Iterator[str | SecureCluster]:
    thread, stack = LoopThread("test cluster"), AsyncExitStack()
    running = _cluster(brokers, data, config, secure=secure)
    thread.start()
    try:
        yield thread.run(stack.enter_async_context(running))
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
