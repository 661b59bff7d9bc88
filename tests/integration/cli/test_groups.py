"""Consumer groups on the command line: output, commits and exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from command_line_kit import CommandLine

VALUES = [f"v{number}" for number in range(12)]


@pytest.fixture
def topic(fairlead: CommandLine, request: pytest.FixtureRequest) -> str:
    """Return a topic for this test alone, with two partitions of six records each."""
    name = request.node.name.translate(str.maketrans("[]", "--"))[:200]
    fairlead("topic", "create", name, "-p", "2")
    for partition in (0, 1):
        typed = "".join(f"{value}\n" for value in VALUES[partition::2])
        fairlead("produce", name, "--partition", str(partition), typed=typed.encode())
    return name


@pytest.fixture
def live_group(dev_broker: str, topic: str) -> Iterator[str]:
    """Yield a group with one member, which joined by plain HTTP requests and owns both partitions."""
    group = f"live-{topic}"[:200]
    url = f"{dev_broker}/v1/groups/{group}/members/by-hand"
    body = json.dumps({"member_epoch": 0, "topics": [topic], "session_timeout_ms": 120_000}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT")) as answer:
        assert answer.status == 200
    yield group
    with urllib.request.urlopen(urllib.request.Request(url, method="DELETE")) as answer:
        assert answer.status == 204


def documents(text: str) -> dict[str, object]:
    """Return a command's JSON answer."""
    found: dict[str, object] = json.loads(text)
    return found


def test_a_group_continues_where_it_stopped(fairlead: CommandLine, topic: str) -> None:
    """A group neither repeats nor skips a record if `-n` stops inside a batch, since printed records are committed."""
    first = fairlead("consume", topic, "-g", "reader", "--from-beginning", "-n", "4").split()
    rest = fairlead("consume", topic, "-g", "reader", "--from-beginning", "-e").split()
    nothing = fairlead("consume", topic, "-g", "reader", "--from-beginning", "-e")
    lag = documents(fairlead("group", "lag", "reader", "--output", "json"))

    assert len(first) == 4
    assert sorted(first + rest) == sorted(VALUES)
    assert nothing == ""
    assert lag["total_records"] == 0


def test_a_group_that_begins_at_the_end_commits_its_position(fairlead: CommandLine, topic: str) -> None:
    """A group that begins at the end reads records written between two calls, even if the first call prints none."""
    assert fairlead("consume", topic, "-g", "late", "-e") == ""
    fairlead("produce", topic, "--partition", "1", typed=b"new\n")

    assert fairlead("consume", topic, "-g", "late", "-e", "-f", r"%p %v\n") == "1 new\n"


def test_a_group_gets_positions_before_its_first_start(fairlead: CommandLine, topic: str) -> None:
    """A reset creates an unknown group when topics are named, and fails with not found otherwise."""
    fairlead("group", "reset", "coming", "--to", "latest", code=3)
    fairlead("group", "reset", "coming", "--to", "latest", "--topic", topic, "--dry-run")
    fairlead("group", "describe", "coming", code=3)
    fairlead("group", "reset", "coming", "--to", "+4", "--topic", f"{topic}:0,1")

    assert len(fairlead("consume", topic, "-g", "coming", "-e").split()) == 4


def test_an_idle_group_is_moved_and_deleted(fairlead: CommandLine, topic: str) -> None:
    """An idle group is reset to the requested offsets and deleted, and a dry run changes nothing."""
    fairlead("consume", topic, "-g", "moved", "--from-beginning", "-e")

    def reset(to: str, *more: str) -> list[list[str]]:
        lines = fairlead("group", "reset", "moved", "--to", to, *more).splitlines()
        return [line.split("\t")[1:] for line in lines[1:]]

    assert reset("-2", "--dry-run") == [["0", "6", "4"], ["1", "6", "4"]]
    assert "--dry-run" in fairlead.errors
    assert reset("-2", "--topic", f"{topic}:1") == [["1", "6", "4"]]
    assert reset("earliest", "--topic", f"{topic}:0") == [["0", "6", "0"]]
    assert reset("latest") == [["0", "0", "6"], ["1", "4", "6"]]
    assert reset("@2000-01-01T00:00:00Z") == [["0", "6", "0"], ["1", "6", "0"]]
    assert reset("3", "--topic", topic) == [["0", "0", "3"], ["1", "0", "3"]]
    assert len(fairlead("consume", topic, "-g", "moved", "-e").split()) == 6
    assert fairlead("group", "delete", "moved", "--yes") == "deleted group moved\n"
    fairlead("group", "describe", "moved", code=3)
    fairlead("consume", topic, "-g", "moved", "-o", "end", "-e")
    assert json.loads(fairlead("group", "delete", "moved", "--yes", "--output", "json")) == {"group": "moved"}


def test_a_live_group_is_shown_and_refuses_to_be_moved(
    fairlead: CommandLine, topic: str, live_group: str
) -> None:
    """A live group is listed and described with its lag, and cannot be reset or deleted."""
    listed = yaml.safe_load(fairlead("group", "list", "--output", "yaml"))
    described = fairlead("group", "describe", live_group)
    lag = fairlead("group", "lag", live_group).splitlines()

    assert {"group": live_group, "coordinator": 0} in listed
    assert f"by-hand\t-\t1\t{topic}\t{topic}:0,1" in described
    assert "total records\t12" in lag
    assert [line.split("\t")[:5] for line in lag[-2:]] == [
        [topic, "0", "-", "6", "6"],
        [topic, "1", "-", "6", "6"],
    ]
    for command in (("reset", live_group, "--to", "earliest"), ("delete", live_group, "--yes")):
        assert fairlead("group", *command, code=4) == ""
        assert live_group in fairlead.errors


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("group", "describe", "nobody"), 3, "nobody"),
        (("group", "lag", "nobody"), 3, "nobody"),
        (("group", "delete", "nobody", "--yes"), 3, "nobody"),
        (("group", "reset", "nobody", "--to", "earliest"), 3, "nobody"),
        (("group", "reset", "x", "--to", "yesterday"), 2, "yesterday"),
        (("group", "reset", "x", "--to", "0", "--topic", "t:x"), 2, "t:x"),
        (("group", "describe", "g" * 250), 4, "249"),
        (("consume", "x", "-g", "y", "--partition", "0"), 2, "--partition"),
        (("consume", "x", "-g", "y", "-o", "5"), 2, "group reset"),
        (("consume", "x", "-g", "g" * 250), 4, "249"),
        (("consume", "misspelt", "-g", "y"), 3, "misspelt"),
        (("consume", "misspelt", "-g", "y", "-e"), 3, "misspelt"),
    ],
)
def test_wrong_calls_are_named_and_have_exit_codes(
    fairlead: CommandLine, arguments: tuple[str, ...], code: int, named: str
) -> None:
    """A failed command names its subject on stderr, and exits with 2 (wrong usage), 3 (not found) or 4 (refused)."""
    assert fairlead(*arguments, code=code) == ""
    assert named in fairlead.errors


def test_a_misspelt_topic_leaves_no_group(fairlead: CommandLine) -> None:
    """A misspelt topic is refused before a member joins, so that no group is created."""
    fairlead("consume", "misspelt", "-g", "never-joined", code=3)

    assert "never-joined" not in fairlead("group", "list")


@pytest.mark.parametrize("verb", ["list", "describe", "lag", "reset", "delete"])
def test_the_help_of_groups_shows_an_example(fairlead: CommandLine, verb: str) -> None:
    """Every group command shows an example in its help."""
    assert f"Example: fairlead group {verb}" in fairlead("group", verb, "--help")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_stopped_member_commits_the_printed_records(
    fairlead: CommandLine, topic: str, shell_environment: dict[str, str], number: signal.Signals
) -> None:
    """A member commits its printed records when interrupted, and the next member continues after them."""
    group = f"stopped-{number.name}"
    command = ["fairlead", "consume", topic, "-g", group, "--from-beginning"]
    with subprocess.Popen(command, env=shell_environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline().strip() for _ in VALUES]
        process.send_signal(number)
        assert process.wait(30) == 0

    described = documents(fairlead("group", "describe", group, "--output", "json"))
    lag = documents(fairlead("group", "lag", group, "--output", "json"))

    assert sorted(shown) == sorted(VALUES)
    assert described["members"] == []
    assert lag["total_records"] == 0
