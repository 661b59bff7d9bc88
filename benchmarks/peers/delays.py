"""Relays between the brokers of a cluster under test, which delay the connections of one broker.

`clusters.py` starts a relay for each broker. The relays run in a thread with a separate event loop, because the
benchmark waits for its workloads in the main thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from peers.brokers import HERE

sys.path.insert(0, str(HERE.parent / "tests" / "chaos"))

from links import Links

Result = TypeVar("Result")
CALL_SECONDS_MAX = 10.0


class BrokerLinks:
    """Relays to the brokers of one cluster. A connection belongs to both processes that it connects."""

    def __init__(self, pids: Callable[[], dict[str, int]]) -> None:
        """Start the thread; `pids` returns the process id of every running process, by name."""
        self._links = Links(pids)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def relay(self, name: str, port: int) -> int:
        """Start a relay to a port of a process, and return the relay's port."""
        return self._run(self._links.relay(name, port))

    def delay(self, name: str, seconds: float) -> None:
        """Delay all bytes from and to a process by a number of seconds."""
        self._loop.call_soon_threadsafe(self._set_delay, name, seconds)

    def close(self) -> None:
        """Close all relays and end the thread."""
        self._run(self._links.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _set_delay(self, name: str, seconds: float) -> None:
        self._links.delayed_node, self._links.delay_seconds = name, seconds

    def _run(self, work: Coroutine[None, None, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS_MAX)
