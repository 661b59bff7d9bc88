"""Fixtures of this folder: an authority, and a broker whose listeners use TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from certificate_kit import Authority
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import RunningBroker, start_broker

FREE = "127.0.0.1:0"


@pytest.fixture(scope="session")
def authority() -> Authority:
    """Return the authority that signs the broker's certificate."""
    return Authority.make()


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> Path:
    """Return a folder with a certificate for this machine."""
    return authority.issue().write(tmp_path / "tls", authority)


@pytest.fixture
async def broker(tls: Path, tmp_path: Path) -> AsyncIterator[RunningBroker]:
    """Yield a broker with TLS on every listener."""
    broker = await start_broker(
        BrokerSettings.load(
            {"data": tmp_path / "data", "listen": FREE, "peer_listen": FREE, "ops_listen": FREE, "tls": tls}
        )
    )
    try:
        yield broker
    finally:
        await broker.stop()
