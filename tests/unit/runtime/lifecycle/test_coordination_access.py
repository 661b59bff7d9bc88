from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import (
    CoordinationClosed,
    CoordinationRefused,
    CoordinationUnavailable,
    UnknownOutcome,
)
from fairlead_broker.runtime.lifecycle import coordination_access
from fairlead_broker.runtime.lifecycle.coordination_access import (
    etcd_options,
    open_coordination,
    patiently,
    store_path,
)
from fairlead_broker.settings import BrokerSettings


class Attempts:
    """A call that fails once with each given error, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        """Start with the errors of the next attempts."""
        self.errors = list(errors)

    async def __call__(self) -> str:
        """Make an attempt."""
        if self.errors:
            raise self.errors.pop(0)
        return "there"


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination_access, "RETRY_SECONDS", (0.0, 0.001))


async def test_a_store_that_is_away_is_tried_until_it_is_there() -> None:
    """A call to an unavailable store is retried until the store answers, and each attempt is logged with its error."""
    log = CapturingLogger()
    away = [CoordinationUnavailable("away"), UnknownOutcome("lost"), CoordinationUnavailable("no leader")]

    assert await patiently(Attempts(*away), "register", log) == "there"
    said = [call.kwargs for call in log.calls]
    assert [(each["what"], each["attempt"], each["reason"]) for each in said] == [
        ("register", 0, "away"),
        ("register", 1, "lost"),
        ("register", 2, "no leader"),
    ]


@pytest.mark.parametrize("error", [CoordinationRefused("wrong password"), CoordinationClosed("closed")])
async def test_what_waiting_does_not_mend_ends_the_attempts(error: Exception) -> None:
    """An error that a retry cannot solve is raised at once."""
    attempts = Attempts(CoordinationUnavailable("away"), error, CoordinationUnavailable("never asked"))
    with pytest.raises(type(error)):
        await patiently(attempts, "register", CapturingLogger())

    assert len(attempts.errors) == 1


async def test_without_etcd_the_store_lies_in_the_data_directory(tmp_path: Path) -> None:
    """A broker without etcd opens its coordination store in the data directory."""
    (tmp_path / ".fairlead").mkdir()
    settings = BrokerSettings(data=tmp_path)
    opened = await open_coordination(settings, SystemClock(), CapturingLogger())
    try:
        assert isinstance(opened, EmbeddedCoordination)
        assert store_path(tmp_path).is_file()
    finally:
        await opened.close()
    assert etcd_options(settings) is None
