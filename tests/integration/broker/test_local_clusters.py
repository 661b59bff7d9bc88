"""`fairlead dev up --brokers 3` and `fairlead cluster move-coordination`, as real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fairlead.blocking import Admin
from warm_programs import warm_program

FREE = "127.0.0.1:0"


def dev_up(folder: Path, brokers: int, listen: str = FREE) -> subprocess.Popen[str]:
    """Start a local cluster."""
    return subprocess.Popen(
        [
            warm_program(),
            "dev",
            "up",
            "--brokers",
            str(brokers),
            "--data",
            folder,
            "--listen",
            listen,
            "--output=json",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_secure_local_cluster_names_its_files(tmp_path: Path) -> None:
    """`dev up --secure` serves with TLS and enforces access rules; certificate and token are kept across a restart."""
    seen = []
    for _ in range(2):
        process = subprocess.Popen(
            [warm_program(), "dev", "up", "--secure", "--data", tmp_path / "c", "--listen", FREE, "--output=json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            with Admin(
                ready["brokers"][0]["data"], ca_file=ready["ca_file"], token_file=ready["token_file"]
            ) as admin:
                who = admin.whoami()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
        files = [Path(ready[name]) for name in ("ca_file", "token_file")]
        seen.append((who.principal, who.mode, *(file.read_bytes() for file in files)))

    assert seen[0] == seen[1]
    assert seen[0][:2] == ("user:admin", "enforce")
    assert files[1].stat().st_mode & 0o077 == 0


def free_port(*distances: int) -> int:
    """Return a port such that the ports at the given distances above it are free."""
    for port in range(21_000 + os.getpid() % 5_000, 32_000):
        with ExitStack() as probes:
            try:
                for distance in distances:
                    probes.enter_context(socket.create_server(("127.0.0.1", port + distance)))
            except OSError:
                continue
            return port
    raise AssertionError


def warnings(log: str) -> str:
    """Return the lines of a log above the level info; records of the audit log have no level."""
    lines = log.splitlines(keepends=True)
    return "".join(line for line in lines if json.loads(line).get("level", "info") != "info")


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the ready line of the process."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    answer: dict[str, Any] = json.loads(line)
    return answer


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    """Send a request with a JSON body or without a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run(
        [warm_program(), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_a_local_cluster_of_three_is_one_cluster_and_comes_back(tmp_path: Path) -> None:
    """A local cluster prints one line with all brokers and keeps a topic with three replicas across a restart.

    After the restart, clients with the brokers' addresses reach them again, and stopping all brokers logs no warning.
    """
    answers, port = [], free_port(0, 10, 20)
    for turn in range(2):
        process = dev_up(tmp_path / "cluster", 3, f"127.0.0.1:{port}")
        try:
            answer = ready(process)
            first, *_, last = (broker["data"] for broker in answer["brokers"])
            if turn == 0:
                call(f"{last}/v1/topics", {"name": "flights", "partitions": 3})
            topic = call(f"{first}/v1/topics/flights")
            answers.append((answer["cluster_id"], topic["topic_id"], topic["replication_factor"]))
            process.send_signal(signal.SIGINT)
            rest, error = process.communicate(timeout=40)
        finally:
            process.kill()

        assert [broker["id"] for broker in answer["brokers"]] == [0, 1, 2]
        assert (process.returncode, rest) == (0, ""), error
        assert [broker["data"].rpartition(":")[2] for broker in answer["brokers"]] == [
            str(port + distance) for distance in (0, 10, 20)
        ]
        assert "cannot be fetched" not in warnings(error)

    assert answers[0] == answers[1]
    assert answers[0][2] == 3
    assert all(
        (tmp_path / "cluster" / f"broker-{each}" / ".fairlead" / "clean").exists() for each in range(3)
    )


@pytest.mark.parametrize(
    ("there", "brokers", "said"),
    [
        (("coordination.sqlite", "broker-0", "broker-1", "broker-2"), 2, "start it with --brokers 3"),
        ((".fairlead",), 3, "is the directory of one broker"),
    ],
)
def test_a_folder_of_another_number_of_brokers_is_refused(
    tmp_path: Path, there: tuple[str, ...], brokers: int, said: str
) -> None:
    """The data folder of a cluster is refused for a different number of brokers, because records would be missing."""
    for name in there:
        (tmp_path / name).mkdir()
    done = run("dev", "up", "--brokers", str(brokers), "--data", tmp_path)

    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.slow
def test_a_directory_without_a_store_is_not_moved(tmp_path: Path) -> None:
    """A data directory without a coordination store stays unchanged, and etcd gets no request."""
    (tmp_path / "data").mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import typer; from fairlead_broker.commands import cluster_move_coordination as move; typer.run(move)",
            f"--from={tmp_path / 'data'}",
            "--etcd=http://127.0.0.1:1",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert "coordination store" in done.stderr
    assert list((tmp_path / "data").iterdir()) == []
