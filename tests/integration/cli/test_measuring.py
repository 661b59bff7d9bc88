"""`fairlead bench`, `fairlead top` and `fairlead topic offsets` against a real broker."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest

from command_line_kit import CommandLine, terminal_window
from fairlead import Admin
from fairlead.cli.verbs import top
from fairlead_api.bodies.metadata import Metadata
from tmux_terminal import tmux_terminals


def test_bench_produces_and_consumes(fairlead: CommandLine) -> None:
    """Records sent by `bench` are counted and stored in the topic, and rates and latencies are reported."""
    fairlead("topic", "create", "load", "-p", "2")
    produced = json.loads(
        fairlead("bench", "produce", "load", "-n", "5000", "-s", "50", "-b", "700", "--output", "json")
    )
    consumed = json.loads(fairlead("bench", "consume", "load", "--output", "json"))
    fewer = json.loads(fairlead("bench", "consume", "load", "-n", "10", "--output", "json"))
    rows = json.loads(fairlead("topic", "offsets", "load", "--output", "json"))

    assert (produced["records"], produced["bytes"]) == (5000, 250_000)
    assert 0 < produced["p50_ms"] <= produced["p99_ms"] <= produced["max_ms"]
    assert produced["records_per_second"] > 0
    # `bench produce` also sends a record to try the topic before it measures.
    assert consumed["records"] == sum(row["records"] for row in rows) >= 5000
    assert 10 <= fewer["records"] <= consumed["records"]
    assert "RECORDS PER SECOND" in fairlead("bench", "consume", "load")


def test_bench_latency_measures_each_record(fairlead: CommandLine) -> None:
    """Latencies of `bench` are measured from sending to reading, at the requested rate."""
    fairlead("topic", "create", "latency")
    found = json.loads(fairlead("bench", "latency", "latency", "-n", "50", "-r", "200", "--output", "json"))

    assert found["records"] == 50
    assert 0 < found["p50_ms"] < 10_000
    assert found["seconds"] >= 0.2


@pytest.mark.slow
def test_bench_shows_its_progress(fairlead: CommandLine, shell_environment: dict[str, str]) -> None:
    """Progress of `bench` is shown on a terminal while it runs, and a table at the end."""
    fairlead("topic", "create", "shown")
    with terminal_window(
        shell_environment, "bench", "produce", "shown", "-n", "3000", "-b", "100", "-r", "2000"
    ) as window:
        window.read_until("records/s")
        code = window.exit_code()

    assert code == 0, window.shown
    assert "RECORDS PER SECOND" in window.shown


COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LIVE = re.compile(r"[\d,]+ records, [\d,]+ records/s, [\d.]+ MB/s(, p99 [\d.]+ ms)?")


@pytest.mark.scenario
def test_bench_consume_shows_its_progress(fairlead: CommandLine, shell_environment: dict[str, str]) -> None:
    """Progress of `bench consume` is shown without latencies, which consumers do not have, and a table at the end."""
    fairlead("topic", "create", "read", "-p", "2")
    fairlead("bench", "produce", "read", "-n", "400000", "-s", "50")
    with terminal_window(shell_environment, "bench", "consume", "read") as window:
        code = window.exit_code()

    shown = COLOURS.sub("", window.shown)
    live = [found[0] for found in LIVE.finditer(shown)]
    assert code == 0, window.shown
    assert live
    assert all("p99" not in line for line in live)
    assert re.search(r"consume\s+400[01]\d\d\b", shown)


@pytest.mark.scenario
@pytest.mark.slow
def test_bench_latency_shows_its_progress(fairlead: CommandLine, shell_environment: dict[str, str]) -> None:
    """Progress of `bench latency` is shown repeatedly with latencies, and a table at the end."""
    fairlead("topic", "create", "slow")
    with terminal_window(shell_environment, "bench", "latency", "slow", "-n", "150", "-r", "100") as window:
        code = window.exit_code()

    shown = COLOURS.sub("", window.shown)
    live = [found[0] for found in LIVE.finditer(shown)]
    counts = [int(line.split()[0].replace(",", "")) for line in live]
    assert code == 0, window.shown
    assert len(counts) > 1
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    assert all("p99" in line for line in live)
    assert re.search(r"latency\s+150\b", shown)


@pytest.mark.parametrize("command", ["produce", "consume", "latency"])
def test_bench_of_a_topic_that_is_not_there(fairlead: CommandLine, command: str) -> None:
    """A missing topic is refused by `bench consume`, because a fetch creates no topic."""
    if command == "consume":
        fairlead("bench", command, "nothing-there", code=3)
        assert "nothing-there" in fairlead.errors
    fairlead("bench", command, "x", "-n", "0", code=2)


def test_offsets_at_a_time(fairlead: CommandLine) -> None:
    """The offset at a time is the offset of the first record at or after the time; an invalid time is refused."""
    fairlead("topic", "create", "times")
    fairlead("produce", "times", typed=b"a\nb\n")
    table = fairlead("topic", "offsets", "times", "--at", "2001-01-01T00:00:00Z")
    late = json.loads(fairlead("topic", "offsets", "times", "--at", "32503680000000", "--output", "json"))
    fairlead("topic", "offsets", "times", "--at", "noon", code=2)

    assert table.splitlines() == ["PARTITION\tSTART\tEND\tRECORDS\tAT", "0\t0\t2\t2\t0"]
    assert late == [{"partition": 0, "start": 0, "end": 2, "records": 2, "at": None}]
    assert "--at 'noon' is not a time" in fairlead.errors
    fairlead("topic", "offsets", "nothing-there", code=3)


def test_top_shows_rates_and_lag(fairlead: CommandLine, shell_environment: dict[str, str]) -> None:
    """Rates and lag are shown once in a pipe, and repeatedly until Ctrl-C on a terminal."""
    fairlead("topic", "create", "busy")
    fairlead("produce", "busy", typed=b"a\n" * 10)
    fairlead("consume", "busy", "-g", "readers", "-n", "4", "--from-beginning")
    found = json.loads(fairlead("top", "-i", "0.2", "--output", "json"))
    table = fairlead("top", "-i", "0.2")
    with terminal_window(shell_environment, "top", "-i", "0.2") as window:
        window.read_until("busy")
        window.read_until("readers")
        window.press("\x03")
        code = window.exit_code()

    [topic] = [row for row in found["topics"] if row["topic"] == "busy"]
    [group] = [row for row in found["groups"] if row["group"] == "readers"]
    assert topic == {"topic": "busy", "partitions": 1, "records_per_s": 0, "records": 10}
    assert (group["lag"], group["coordinator"]) == (6, 0)
    assert "busy\t1\t0\t10" in table
    assert code == 0


class DeletingAdmin(Admin):
    """Admin client for which a topic is deleted between the list of topics and the next request."""

    async def metadata(self, topics: object = None) -> Metadata:
        """Return the metadata from before the deletion."""
        answer = await super().metadata()
        await self.delete_topic("deleted-under-top")
        return answer


async def test_top_continues_when_a_topic_is_deleted(dev_broker: str) -> None:
    """Topics that remain are shown by `top` after a deletion."""
    async with Admin(dev_broker) as admin, DeletingAdmin(dev_broker) as looker:
        await admin.create_topic("stays")
        await admin.create_topic("deleted-under-top", partitions=2)
        seen = await top._look(looker)

    assert "stays" in {place.topic for place in seen.ends}
    assert "deleted-under-top" not in {place.topic for place in seen.ends}


@pytest.mark.scenario
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_top_waits_for_brokers_that_come_back(tmp_path: Path) -> None:
    """An unreachable cluster is reported by `top` below the last figures, and rates continue after the recovery."""
    programs = str(Path(sys.executable).parent)
    home = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    start = f"fairlead dev up --listen {address} --data {tmp_path}/kept"
    home["FAIRLEAD_BOOTSTRAP"] = f"http://{address}"
    with tmux_terminals(tmp_path, home, "cluster", "looker", "user") as (cluster, looker, user):
        cluster.begin(start)
        cluster.wait_for("is ready")
        user.run("fairlead topic create before")
        looker.begin("fairlead top -i 0.2")
        looker.wait_for("before")
        cluster.press("C-c")
        cluster.end()
        told = looker.wait_for("error:")
        cluster.begin(start)
        cluster.wait_for("is ready")
        user.run("fairlead topic create after")
        again = looker.wait_for("after")
        looker.press("C-c")
        ended = looker.end()
        cluster.press("C-c")
        cluster.end()

    assert "before" in told
    assert "error:" not in again
    assert "ended with 0" in ended
