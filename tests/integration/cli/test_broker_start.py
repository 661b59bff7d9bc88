"""`fairlead broker start` on a server: stored data, ports and signals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_line_kit import CommandLine

FREE = "127.0.0.1:0"
FREE_OTHERS = ("--peer-listen", FREE, "--ops-listen", FREE)


@contextmanager
def broker(data: Path, environment: dict[str, str], *more: str) -> Iterator[dict[str, str]]:
    """Run a broker on free ports and yield its addresses; SIGTERM must end the process with exit code 0."""
    command = ["fairlead", "broker", "start", "--data", str(data), "--output", "json"]
    command += ["--listen", FREE, "--peer-listen", FREE, "--ops-listen", FREE, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    assert process.stdout is not None
    with process.stdout:
        ready = process.stdout.readline()
        try:
            assert ready
            yield json.loads(ready)["brokers"][0]
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(20)
        assert code == 0
        assert process.stdout.read() == b""


@pytest.mark.slow
def test_records_stay_over_a_restart(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    """Records that were acknowledged before a stop are read after the next start, at the same offsets."""
    fairlead = CommandLine(shell_environment)
    with broker(tmp_path / "data", shell_environment) as first:
        fairlead("topic", "create", "kept", "--bootstrap", first["data"])
        fairlead("produce", "kept", "--bootstrap", first["data"], typed=b"one\ntwo\n")
    with broker(tmp_path / "data", shell_environment) as second:
        lines = fairlead(
            "consume", "kept", "-o", "start", "-e", "-f", r"%o %v\n", "--bootstrap", second["data"]
        )

    assert lines == "0 one\n1 two\n"


@pytest.mark.slow
def test_the_ops_listener_shows_health_and_metrics(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    """The ops listener answers that the broker is alive and ready, and returns metrics that Prometheus reads."""
    with broker(tmp_path / "data", shell_environment) as addresses:
        answers = {
            path: urllib.request.urlopen(addresses["ops"] + path, timeout=10).read().decode()
            for path in ("/healthz", "/readyz", "/metrics")
        }

    assert "fairlead_build_info" in answers["/metrics"]


@pytest.mark.slow
def test_a_port_in_use_is_named(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    """A broker does not start on a port in use, and the message names the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            ["fairlead", "broker", "start", "--data", str(tmp_path), "--listen", address, *FREE_OTHERS],
            env=shell_environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 1
    assert address in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_second_broker_on_the_same_data_is_refused(
    tmp_path: Path, shell_environment: dict[str, str]
) -> None:
    """A data directory is never shared by two brokers, and the message names the folder."""
    with broker(tmp_path / "data", shell_environment):
        done = subprocess.run(
            ["fairlead", "broker", "start", "--data", str(tmp_path / "data"), "--listen", FREE, *FREE_OTHERS],
            env=shell_environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 1
    assert str(tmp_path / "data") in done.stderr
    assert "Traceback" not in done.stderr
