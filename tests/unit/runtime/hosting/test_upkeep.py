"""Checkpoints are written at regular intervals, and earlier after many appended bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from fairlead_broker.clock import SystemClock
from fairlead_broker.log import LogDirectory
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.hosting.upkeep import Upkeep
from runtime_kit import new_id
from waiting import until

BYTES_MAX = 1000
NEVER_SECONDS = 3600.0


@dataclass(slots=True)
class Appends:
    """The number of appended bytes that the upkeep reads."""

    nbytes: int = 0
    asked: int = 0

    def __call__(self) -> int:
        """Return the number of appended bytes, and count the call."""
        self.asked += 1
        return self.nbytes

    async def wait_asked(self, times: int) -> None:
        """Wait for the given number of further reads by the upkeep."""
        enough = self.asked + times
        await until(lambda: self.asked >= enough)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    """Yield a data directory."""
    opened = LogDirectory.open(
        tmp_path / "data", cluster_id=new_id(), broker_id=0, clock=SystemClock(), new_directory_id=new_id()
    )
    yield opened
    opened.close(False)


@asynccontextmanager
async def upkeep_of(
    directory: LogDirectory, appends: Appends, interval_seconds: float
) -> AsyncIterator[None]:
    """Yield a running upkeep."""
    pool = DiskPool("disk", 1)
    upkeep = Upkeep(
        directory,
        tuple,
        pool,
        SystemClock(),
        interval_seconds,
        bytes_max=BYTES_MAX,
        appended_bytes=appends,
        failed=lambda _: None,
        log=structlog.get_logger(),
    )
    running = asyncio.ensure_future(upkeep.run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        pool.close()


@pytest.mark.slow
async def test_a_checkpoint_is_written_after_so_many_bytes(directory: LogDirectory) -> None:
    """A checkpoint is written after a number of appended bytes, and again after the same number."""
    checkpoint = directory.path / ".fairlead" / "checkpoint"
    checkpoint.unlink(missing_ok=True)
    appends = Appends(nbytes=5)
    async with upkeep_of(directory, appends, NEVER_SECONDS):
        await until(lambda: appends.asked > 0)
        for enough in (5 + BYTES_MAX, 5 + 2 * BYTES_MAX):
            appends.nbytes = enough - 1
            await appends.wait_asked(2)
            assert not checkpoint.exists()
            appends.nbytes = enough
            await until(checkpoint.exists)
            checkpoint.unlink()
            # When the upkeep reads the number of appended bytes again, it has started a new interval.
            await appends.wait_asked(1)


async def test_a_checkpoint_is_written_by_the_clock(directory: LogDirectory) -> None:
    """A checkpoint is written at regular intervals even without appends: high watermark and log start may move."""
    checkpoint = directory.path / ".fairlead" / "checkpoint"
    async with upkeep_of(directory, Appends(), 0.01):
        for _ in range(3):
            checkpoint.unlink(missing_ok=True)
            await until(checkpoint.exists)
