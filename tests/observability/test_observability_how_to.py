"""Tests of the commands and outputs of the how-to guide on observability."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import checkout
from made_files import make_chart_files
from monitored_cluster import free_port, stop, wait_for
from warm_programs import search_path

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = checkout.ROOT / "docs/how-to/observability.md"
BLOCK = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS = ("9520", "9521", "9522", "9090")


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield the programs that the page starts, and stop them after the test."""
    programs: list[subprocess.Popen[bytes]] = []
    yield programs
    for program in reversed(programs):
        stop(program)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_command_of_the_first_section(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    """All commands of the section run in order, in a folder with the files of the checkout, on free ports."""
    section = PAGE.read_text().partition("## On one machine\n")[2].partition("\n## ")[0]
    ports = {port: str(free_port()) for port in PORTS}
    for port, free in ports.items():
        section = section.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
    make_chart_files()
    (tmp_path / "manifests").symlink_to(checkout.ROOT / "manifests")
    environment = {
        **os.environ,
        "PATH": search_path(),
        "FAIRLEAD_BOOTSTRAP": f"http://127.0.0.1:{ports['9520']}",
        "FAIRLEAD_LISTEN": f"127.0.0.1:{ports['9520']}",
        "FAIRLEAD_PEER_LISTEN": f"127.0.0.1:{ports['9521']}",
        "FAIRLEAD_OPS_LISTEN": f"127.0.0.1:{ports['9522']}",
    }

    def run(text: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euo", "pipefail", "-c", text]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    def answers(text: str) -> subprocess.CompletedProcess[str] | None:
        done = run(text)
        return done if done.returncode == 0 else None

    printed, done = "", []
    for language, how, text in BLOCK.findall(section):
        match language, how:
            case "sh", "start":
                with (tmp_path / f"program-{len(started)}.log").open("wb") as log:
                    started.append(
                        subprocess.Popen(
                            shlex.split(text), cwd=tmp_path, env=environment, stdout=log, stderr=log
                        )
                    )
                wait_for("the broker does not answer", lambda: answers("fairlead cluster health"))
            case "sh", "retry":
                wait_for(text, lambda text=text: answers(text))
            case "sh", _:
                finished = run(text)
                assert finished.returncode == 0, finished.stdout + finished.stderr
                printed = finished.stdout
            case "yaml", _:
                (tmp_path / how.partition('"')[2].rstrip('"')).write_text(text)
            case "text", _:
                assert printed.splitlines()[-len(text.splitlines()) :] == text.splitlines()
        done.append((language, how))

    assert [language for language, _ in done] == ["sh", "sh", "text", "yaml", "sh", "sh", "sh"]


def test_settings_of_spark_are_those_of_the_watched_job() -> None:
    """The page shows the same settings as the job in the test of the board."""
    section = PAGE.read_text().partition("## Spark jobs\n")[2]
    asked = dict(line.split() for line in section.partition("```text\n")[2].partition("```")[0].splitlines())
    program = (
        Path(__file__)
        .with_name("watched_job.py")
        .read_text()
        .replace("{SERVLET}", "spark.metrics.conf.*.sink.prometheusServlet")
    )

    for name, value in asked.items():
        assert f'"{name}": "{value}"' in program
