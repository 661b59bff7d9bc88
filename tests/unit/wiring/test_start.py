"""Warnings when a broker starts."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import CapturingLogger

from certificate_kit import Authority
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.wiring.start import warn_if_open

EVERYWHERE = {"listen": "0.0.0.0:1", "peer_listen": "0.0.0.0:2", "ops_listen": "0.0.0.0:3"}


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({}, []),
        ({"kafka_listen": "0.0.0.0:4", "security": "open"}, ["kafka"]),
        ({**EVERYWHERE, "security": "open"}, ["data", "peer", "ops"]),
        ({**EVERYWHERE, "security": "observe", "tls": True}, ["data", "ops"]),
        ({**EVERYWHERE, "security": "enforce", "superusers": "user:a", "tls": True}, []),
        ({**EVERYWHERE, "security": "enforce", "superusers": "user:a", "allow_plaintext": True}, ["peer"]),
        (
            {
                **EVERYWHERE,
                "security": "enforce",
                "superusers": "user:a",
                "tls": True,
                "metrics_access": "open",
            },
            ["ops"],
        ),
    ],
)
def test_listeners_that_admit_strangers_are_warned_about(given, warned: list[str], tmp_path) -> None:
    """A warning is logged for each listener that other machines can reach without being authenticated."""
    if given.get("tls"):
        authority = Authority.make()
        given = {**given, "tls": authority.issue().write(tmp_path, authority)}
    log = CapturingLogger()
    warn_if_open(BrokerSettings.load(given), structlog.wrap_logger(log, processors=[]))

    assert [call.kwargs["listener"] for call in log.calls] == warned
