"""A program that reads orders and writes results in transactions, in a process that can be killed or paused.

The module is also the program of the process: each order is sent to two topics, in the transaction that contains the
group's offsets, as in the recipe "read, transform, write".
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairlead import Consumer, Producer, exactly_once

ORDERS: Final = "orders"
RESULTS: Final = ("priced", "ledger")
PARTITIONS: Final = 3
"""Partitions of each topic."""
GROUP: Final = "pricing"
WORKER: Final = "pricing-"
"""Prefix of the producer names of the workers."""
TIMEOUT_SECONDS: Final = 4
"""Timeout of the member's session, and of a transaction."""


@dataclass(slots=True)
class PricingProcess:
    """Successive processes of one worker, whose producer has a name."""

    folder: Path
    urls: Sequence[str]
    name: str
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a process."""
        self.starts += 1
        settings = {"urls": list(self.urls), "name": self.name}
        # The worker gets the module path of this process, so that it finds the same modules.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(settings)], stdout=log, stderr=log, env=environment
            )

    @property
    def log(self) -> Path:
        """File with the output of the newest process."""
        return self.folder / f"{self.name}-{self.starts}.log"

    @property
    def has_ended(self) -> bool:
        """Whether the newest process has ended without `end`."""
        return self._process is not None and self._process.poll() is not None

    def pause(self) -> subprocess.Popen[bytes]:
        """Pause the process with its connections open, and return the process once it is paused."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        return self._process

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the newest process by a signal, and wait until it has ended."""
        process, self._process = self._process, None
        if process is not None:
            await ended(process, number)


async def ended(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Send a signal to a process, and return its exit code."""
    process.send_signal(number)
    try:
        return await asyncio.to_thread(process.wait, 60)
    except BaseException:
        process.kill()
        raise


def error_in(log: Path) -> str:
    """Return the name of the error with which a worker ended."""
    found = re.findall(r"^[\w.]*\b(\w+Error)\b", log.read_text(errors="replace"), re.MULTILINE)
    return found[-1] if found else "unknown"


async def _work(settings: dict[str, Any]) -> None:
    urls, timeout = settings["urls"], f"{TIMEOUT_SECONDS}s"
    producer = Producer(urls, transactional=settings["name"], transaction_timeout=timeout)
    consumer = Consumer(
        urls, group=GROUP, topics=ORDERS, commit="manual", isolation="read_committed", session_timeout=timeout
    )
    async with producer, consumer:
        async for transaction in exactly_once(consumer, producer):
            async with transaction:
                async for batch in transaction:
                    for record in batch:
                        for topic in RESULTS:
                            await transaction.send(topic, record.value, key=record.key)


if __name__ == "__main__":
    asyncio.run(_work(json.loads(sys.argv[1])))
