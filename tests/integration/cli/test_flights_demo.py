"""The demo `make demo` as a test: two groups count the flights of 2013, and the counts are checked against the file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from command_line_kit import CommandLine
from quick_java import quick_java
from spark_session import QUICK_WORKERS

DEMO = Path(__file__).parents[3] / "docs" / "tutorial" / "flights.py"
SECONDS_MAX = 580
"""Time limit in seconds for a run under load; an idle machine needs thirty seconds."""
LEAVES_A_CHILD = """
import subprocess, sys
subprocess.Popen(["sleep", "1000"], pass_fds=[int(sys.argv[1])], **dict.fromkeys(("stdin", "stdout", "stderr"), -3))
sys.exit(7)
"""
STAYS = "import sys; from flights import Addresses, stay; stay(Addresses(*sys.argv[1:]))"


def run_with_all_it_starts(
    command: list[str], environment: dict[str, str], keep: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program, and end all its processes when it returns, fails, times out or is interrupted."""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=keep,
        start_new_session=True,
    ) as program:
        try:
            printed, told = program.communicate(timeout=SECONDS_MAX)
        finally:
            # End the brokers and group members too, because they would otherwise wait for records forever.
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, program.returncode, printed, told)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX + 20)
def test_the_demo_ends_by_itself_with_the_right_numbers(shell_environment: dict[str, str]) -> None:
    """After a member is killed, the demo still prints sixteen carriers and the file's totals, and leaves no process."""
    environment = shell_environment | QUICK_WORKERS | quick_java()
    done = run_with_all_it_starts([sys.executable, str(DEMO)], environment)

    assert done.returncode == 0, done.stderr
    assert "336,776 flights, 8,255 missing" in done.stdout
    assert "│ UA      │  58,665 │                      12.11 │" in done.stdout
    assert "a member of board is killed after" in done.stdout
    assert "group board counted 336,776 flights, each once" in done.stdout
    assert "group archive counted 336,776 flights, each once" in done.stdout
    assert "curl -H" not in done.stdout
    assert "/metrics" not in done.stdout
    assert ".venv/bin/python docs/tutorial/flights.py --keep" in done.stdout.splitlines()[-2]
    assert "docs/tutorial/quick-start.md" in done.stdout.splitlines()[-1]


def test_a_demo_that_stays_prints_its_addresses(
    dev_broker: str, shell_environment: dict[str, str], fairlead: CommandLine
) -> None:
    """A running demo prints addresses for a stored record and for metrics, and Ctrl-C ends it with exit code 0."""
    fairlead("topic", "create", "flights")
    fairlead("produce", "flights", typed=b"the first flight\n")
    with subprocess.Popen(
        [sys.executable, "-c", STAYS, dev_broker, "http://127.0.0.1:9522"],
        cwd=DEMO.parent,
        env=shell_environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        told = list(iter(demo.stdout.readline, "the broker stays until Ctrl-C\n"))
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    fairlead("topic", "delete", "flights", "--yes")

    assert demo.returncode == 0
    assert f"'{dev_broker}/v1/topics/flights/partitions/0/records?offset=0&max_bytes=1'" in told[0]
    assert "the first flight" in told[1]
    assert told[-1] == "metrics: http://127.0.0.1:9522/metrics\n"
    # The last line may be printed again: Python writes a buffered line twice when a signal interrupts the write.
    assert rest.removeprefix("the broker stays until Ctrl-C\n") == "stopped\n"


def test_no_process_outlives_a_demo_that_fails(shell_environment: dict[str, str]) -> None:
    """A failed demo leaves no process: every process that could write to its pipe has ended."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as left:
        try:
            command = [sys.executable, "-c", LEAVES_A_CHILD, str(writer)]
            done = run_with_all_it_starts(command, shell_environment, keep=(writer,))
        finally:
            os.close(writer)

        assert done.returncode == 7, done.stderr
        assert left.read() == b""
