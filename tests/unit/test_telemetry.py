"""Logs and metrics."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import structlog
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from fairlead_api.metrics import METRICS, PROCESS_METRICS
from fairlead_broker.telemetry import Telemetry, quiet_by_default, set_up_logging

if TYPE_CHECKING:
    import pytest


def test_every_metric_of_the_catalogue_is_exposed() -> None:
    """Every metric of the catalogue is exposed with its name, help and kind."""
    text = generate_latest(Telemetry().registry).decode()

    assert all(f"# HELP {definition.name} " in text for definition in METRICS)
    assert all(f"# TYPE {definition.name} {definition.kind}" in text for definition in METRICS)


def test_metrics_of_the_process_are_those_of_the_catalogue() -> None:
    """The process metrics of the Prometheus library are exactly those in the catalogue."""
    text = generate_latest(Telemetry().registry).decode()
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE process_")}

    assert told == {definition.name for definition in PROCESS_METRICS}


def test_two_brokers_in_one_process_count_apart() -> None:
    """Two brokers in one process have separate registries."""
    first, second = Telemetry(), Telemetry()
    first.metric("fairlead_produce_bytes_total").watch(("flights",), lambda: 5)

    assert first.registry.get_sample_value("fairlead_produce_bytes_total", {"topic": "flights"}) == 5
    assert second.registry.get_sample_value("fairlead_produce_bytes_total", {"topic": "flights"}) is None


def test_metrics_of_topics_are_read_at_each_scrape() -> None:
    """A topic's series has the value at the time of the scrape, and disappears with the topic."""
    telemetry = Telemetry()
    values = {"in": 1, "out": 2}
    records = telemetry.metric("fairlead_records_total")
    for direction in values:
        records.watch(("flights", direction), partial(values.__getitem__, direction))
    values["out"] = 3
    text = generate_latest(telemetry.registry).decode()
    records.forget(("flights", "out"))

    assert "# TYPE fairlead_records_total counter" in text
    assert 'fairlead_records_total{direction="in",topic="flights"} 1.0' in text
    assert 'fairlead_records_total{direction="out",topic="flights"} 3.0' in text
    assert (
        telemetry.registry.get_sample_value(
            "fairlead_records_total", {"topic": "flights", "direction": "out"}
        )
        is None
    )


def test_logs_go_to_stderr_as_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Logs are written to stderr as one JSON object per line, from the configured level upwards."""
    set_up_logging("json", "info")
    try:
        log = structlog.get_logger("fairlead")
        log.info("broker is ready", broker=0)
        log.debug("not shown")
        out, error = capsys.readouterr()
    finally:
        structlog.reset_defaults()
    [line] = error.splitlines()
    event = json.loads(line)

    assert out == ""
    assert (event["event"], event["broker"], event["level"]) == ("broker is ready", 0, "info")


def test_console_logs_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """A console log record is one readable line, without colours if stderr is not a terminal."""
    set_up_logging("console", "warning")
    try:
        structlog.get_logger("fairlead").warning("listener is open", address="0.0.0.0:1")
        _, error = capsys.readouterr()
    finally:
        structlog.reset_defaults()

    assert "listener is open" in error
    assert "\x1b[" not in error


def test_a_program_without_log_settings_is_quiet_even_after_a_capture(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A program without log settings writes only errors, even after its logs were captured."""
    structlog.reset_defaults()
    with capture_logs() as captured:
        structlog.get_logger("fairlead").info("looked at")
    try:
        with quiet_by_default():
            structlog.get_logger("fairlead").info("broker is ready")
            structlog.get_logger("fairlead").error("disk is full")
        structlog.get_logger("fairlead").info("afterwards as before")
        out, error = capsys.readouterr()
    finally:
        structlog.reset_defaults()

    assert [each["event"] for each in captured] == ["looked at"]
    assert "broker is ready" not in out + error
    assert "disk is full" in error
    assert "afterwards as before" in out


def test_a_program_with_log_settings_keeps_its_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """A program with its own log settings keeps writing its logs."""
    set_up_logging("json", "info")
    try:
        with quiet_by_default():
            structlog.get_logger("fairlead").info("broker is ready")
        _, error = capsys.readouterr()
    finally:
        structlog.reset_defaults()

    assert json.loads(error)["event"] == "broker is ready"
