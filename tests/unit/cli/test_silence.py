"""A command fails quickly if the address accepts connections but never answers."""

from __future__ import annotations

import socket

import pytest

from fairlead.cli.main import run_command
from fairlead.cli.session import ExitCode
from refusals import missing

ANSWERED_AT_ONCE = [
    ["topic", "list"],
    ["topic", "describe", "flights"],
    ["group", "list"],
    ["cluster", "info"],
    ["cluster", "health"],
    ["broker", "list"],
    ["partition", "moves"],
]


@pytest.mark.parametrize(
    "command",
    [
        ANSWERED_AT_ONCE[0],
        *(pytest.param(each, marks=pytest.mark.scenario) for each in ANSWERED_AT_ONCE[1:]),
    ],
    ids=" ".join,
)
def test_a_read_command_waits_nine_seconds_for_an_answer(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read command waits nine seconds for an answer, and its error contains the waiting time and the address."""
    monkeypatch.setattr("fairlead.connection.transport.ANSWER_MARGIN_SECONDS", -3.0)
    monkeypatch.setattr("fairlead.connection.wrong_listener.LOOK_SECONDS_MAX", 2.0)
    monkeypatch.setattr(f"fairlead.cli.verbs.{command[0]}.RETRY_TIMEOUT", "1ms")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "http://{}:{}".format(*silent.getsockname())
        code = run_command([*command, "--bootstrap", address])

    assert code == ExitCode.UNREACHABLE
    assert missing(capsys.readouterr().err, address, 1) == []
