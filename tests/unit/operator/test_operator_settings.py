"""Settings of the operator: their parsing from environment variables, and refused values."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fairlead_operator.settings import Listen, OperatorSettings, Scope
from refusals import raises


@pytest.mark.parametrize(
    ("text", "scope"),
    [("", ("home",)), ("a, b,", ("a", "b")), ("*", ()), ("a,*", ())],
)
def test_namespaces_make_a_scope(monkeypatch: pytest.MonkeyPatch, text: str, scope: tuple[str, ...]) -> None:
    """The operator watches the listed namespaces, its own if none is listed, and all if the list is a star."""
    monkeypatch.setenv("FAIRLEAD_OPERATOR_NAMESPACES", text)
    found = OperatorSettings().scope("home")

    assert found == Scope(scope)
    assert found.everything is (scope == ())


@pytest.mark.parametrize(
    ("text", "listen"),
    [("127.0.0.1:0", Listen("127.0.0.1", 0)), ("[::1]:8080", Listen("::1", 8080)), (":80", Listen("", 80))],
)
def test_a_listener_is_host_and_port(monkeypatch: pytest.MonkeyPatch, text: str, listen: Listen) -> None:
    """A listener consists of a host, in brackets if it is IPv6, and a port."""
    monkeypatch.setenv("FAIRLEAD_OPERATOR_METRICS_LISTEN", text)

    assert OperatorSettings().metrics_listen == listen


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("METRICS_LISTEN", "8080", "HOST:PORT"),
        ("METRICS_LISTEN", "host:70000", "65535"),
        ("RESYNC_SECONDS", "1", "5"),
        ("LOG_FORMAT", "xml", "'json' 'console' 'auto'"),
    ],
)
def test_wrong_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, named: str
) -> None:
    """The refusal of an invalid value of a setting describes the expected form."""
    monkeypatch.setenv(f"FAIRLEAD_OPERATOR_{name}", text)

    with raises(ValidationError, *named.split()):
        OperatorSettings()
