"""A real broker in this process over a disk that can fail, and small file systems that really fill up."""

from __future__ import annotations

import asyncio
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker_kit import Calls
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import RunningBroker, start_broker
from log_kit import FaultyStorage

VOLUME_BYTES = 48 << 20


@dataclass(slots=True)
class FaultyBroker:
    """A broker, its failing disk, and requests to the broker."""

    data: Path
    storage: FaultyStorage = field(default_factory=FaultyStorage)
    settings: dict[str, object] = field(default_factory=dict)
    running: RunningBroker | None = None
    _calls: Calls | None = None

    @property
    def calls(self) -> Calls:
        """Requests to the current broker."""
        assert self._calls is not None
        return self._calls

    @property
    def broker(self) -> RunningBroker:
        """The current broker."""
        assert self.running is not None
        return self.running

    async def start(self) -> None:
        """Start a broker with a working disk."""
        self.storage = FaultyStorage()
        free = dict.fromkeys(("listen", "peer_listen", "ops_listen"), "127.0.0.1:0")
        settings = BrokerSettings.load({"data": self.data, **free, **self.settings})
        self.running = await start_broker(settings, storage=self.storage)
        self._calls = await Calls(str(self.running.addresses.data)).__aenter__()

    async def stop(self) -> None:
        """Stop the broker gracefully, as far as its disk allows."""
        if self._calls is not None:
            await self._calls.__aexit__()
        if self.running is not None:
            await self.running.stop()
        self.running = self._calls = None

    async def ops(self, path: str) -> int:
        """Return the status of a page of the ops listener."""
        return (await self.ops_page(path))[0]

    async def ops_page(self, path: str) -> tuple[int, str]:
        """Return status and text of a page of the ops listener."""
        return await asyncio.to_thread(_get, f"http://{self.broker.addresses.ops}{path}")


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
async def faulty(tmp_path: Path) -> AsyncIterator[FaultyBroker]:
    """Yield a started broker over a failing disk."""
    broker = FaultyBroker(tmp_path / "data")
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture(params=["ext4", pytest.param("tmpfs", marks=pytest.mark.scenario)])
def small_volume(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a mounted file system of 48 MiB; the test is skipped when mounting is not permitted."""
    folder = tmp_path / "volume"
    folder.mkdir()
    if request.param == "ext4":
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(VOLUME_BYTES)
        made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], capture_output=True, check=False)
        mount = ["mount", "-o", "loop", str(image), str(folder)]
    else:
        made = subprocess.run(["true"], check=False)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "fairlead", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode or mounted.returncode:
        pytest.skip(f"cannot mount a {request.param}: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
