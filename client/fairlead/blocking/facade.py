"""Base classes of the blocking clients, each of which wraps an async client.

`blocking` and `in_loop` turn methods of the async client into blocking calls with the same arguments and docstrings, so
that signatures and docstrings are written only once. The module must not depend on any particular client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from fairlead.blocking.loop_thread import LoopThread
from fairlead.errors import second_start

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AsyncClient(Protocol):
    """An async client of the SDK."""

    async def __aenter__(self) -> Self:
        """Open the client."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""


C = TypeVar("C", bound=AsyncClient)


class Facade(Generic[C]):
    """A blocking client, opened with `with`, or with `start` and `close`."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._thread = LoopThread(f"fairlead {type(client).__name__.lower()}")
        self._closing = threading.Lock()
        """Lock held by the call that closes or aborts the client; no call waits for the lock."""

    def start(self) -> Self:
        """Open the connections, as entering the `with` block does. Raises `SettingError` while the client is open."""
        if self._thread.running:
            raise second_start()
        self._thread.start()
        try:
            self._thread.run(self._client.__aenter__())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def close(self) -> None:
        """Close the underlying async client and stop its thread.

        Return at once if another call is already closing the client.
        """
        self._close(None, None, None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(kind, error, trace)

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(lambda: self._leave(kind, error, trace))

    def _end(self, leave: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close the client and stop its thread; return at once if another call is closing the client."""
        if not self._closing.acquire(blocking=False):
            # Stopping the thread now would interrupt the closing call, and waiting for that call could deadlock.
            return
        try:
            if self._thread.running:
                self._run_last(leave())
        finally:
            self._closing.release()

    def _run_last(self, leaving: Coroutine[Any, Any, None]) -> None:
        try:
            self._thread.run(leaving)
        finally:
            self._thread.stop()

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)


class Method(Protocol[P, T_co]):
    """Type of a function in a class, which Python binds to the object when the attribute is looked up.

    `Callable` does not express the binding: type checkers disagree on whether a `Callable` in a class takes the object
    as an argument.
    """

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Callable[Concatenate[Any, P], T_co]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[P, T_co]: ...


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Method[P, T]:
    """Turn a coroutine method of the async client into a blocking call."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        facade: Facade[Any] = self
        return facade._thread.run(method(facade._client, *args, **kwargs))  # noqa: SLF001 - called within the class

    return cast("Method[P, T]", call)


def from_loop(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Method[P, Coroutine[Any, Any, T]]:
    """Turn a coroutine method of the async client into a coroutine method for callers on other event loops.

    The class has the attributes `_client` and `_thread`, as `Facade` has.
    """

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        facade: Facade[Any] = self
        return await facade._thread.run_from_loop(method(facade._client, *args, **kwargs))  # noqa: SLF001

    return cast("Method[P, Coroutine[Any, Any, T]]", call)


def in_loop(method: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
    """Turn a synchronous method of the async client, which must run on the event loop, into a blocking call."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        facade: Facade[Any] = self

        async def run() -> T:
            """Call the method on the event loop, between two steps of the async client."""
            return method(facade._client, *args, **kwargs)  # noqa: SLF001 - called within the class

        return facade._thread.run(run())  # noqa: SLF001 - called within the class

    return cast("Method[P, T]", call)


def same_arguments(
    of: Callable[Concatenate[Any, P], None],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator that copies the signature and the docstring of the async client's constructor."""

    def decorate(constructor: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        return wraps(of)(constructor)

    return decorate
