"""Every command of the command line against a real broker: output and exit code."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from command_line_kit import CommandLine


@pytest.fixture
def topic(fairlead: CommandLine, request: pytest.FixtureRequest) -> str:
    """Return a topic for this test alone, with two partitions."""
    name = request.node.name.replace("[", ".").replace("]", "")[:200]
    fairlead("topic", "create", name, "-p", "2")
    return name


def test_a_bare_call_prints_usage_and_ends_with_two(fairlead: CommandLine) -> None:
    """The command line prints its usage and ends with exit code 2 when called without arguments."""
    text = fairlead(code=2) + fairlead.errors

    assert "Usage: fairlead" in text
    assert "produce" in text


def test_topics_are_created_listed_described_and_deleted(fairlead: CommandLine) -> None:
    """A topic is created, listed, described and deleted, in each of the three output formats."""
    created = fairlead(
        "topic", "create", "life", "-p", "3", "-c", "segment.bytes=1048576", "--output", "json"
    )
    again = fairlead("topic", "create", "life", "-p", "3", "-c", "segment.bytes=1048576")
    listed = yaml.safe_load(fairlead("topic", "list", "--output", "yaml"))
    described = json.loads(fairlead("topic", "describe", "life", "--output", "json"))
    table = fairlead("topic", "describe", "life")

    assert json.loads(created)["partitions"] == 3
    assert again == "topic life already exists with 3 partitions\n"
    assert "life" in [topic["name"] for topic in listed]
    assert [row["partition"] for row in described["partitions"]] == [0, 1, 2]
    assert described["topic"]["config"]["segment.bytes"] == {"value": "1048576", "source": "topic"}
    assert "segment.bytes" in table
    assert fairlead("topic", "delete", "life", "--yes") == "deleted topic life\n"
    fairlead("topic", "describe", "life", code=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("topic", "create", "no/slash"), 4, "no/slash"),
        (("topic", "create", "x", "-c", "segment.bytes=1"), 4, "segment.bytes"),
        (("topic", "create", "x", "-c", "nonsense"), 2, "key=value"),
        (("topic", "create", "x", "-r", "3"), 4, "3 replicas"),
        (("topic", "describe", "nowhere"), 3, "nowhere"),
        (("topic", "delete", "nowhere", "--yes"), 3, "nowhere"),
        (("produce", "x", "-k", "a", "--key-separator", ":"), 2, "only one of"),
        (("produce", "x", "-f", "%k"), 2, "%v"),
        (("produce", "x", "--file", "nowhere.csv"), 2, "nowhere.csv"),
        (("consume", "x", "--file", "0-1.batches"), 2, "0-1.batches"),
        (("produce", "x", "-H", "bad"), 2, "name:value"),
        (("consume", "nowhere"), 3, "nowhere"),
        (("consume", "x", "-o", "yesterday"), 2, "yesterday"),
        (("consume", "x", "-o", "5", "--from-beginning"), 2, "--from-beginning"),
        (("consume", "x", "-f", "%q"), 2, "%q"),
        (("consume", "x", "--output", "xml"), 2, "xml"),
        (("topic", "list", "--bootstrap", "http://127.0.0.1:1"), 5, "127.0.0.1:1"),
        (("topic", "list", "--bootstrap", "nonsense"), 2, "nonsense"),
        (("no-such-command",), 2, "no-such-command"),
    ],
)
def test_wrong_calls_are_named_and_have_exit_codes(
    fairlead: CommandLine, arguments: tuple[str, ...], code: int, named: str
) -> None:
    """Failures name the subject on stderr and exit with 2 for usage, 3 not found, 4 refused, 5 unreachable."""
    out = fairlead(*arguments, code=code)

    assert named in fairlead.errors
    assert out == ""


def test_lines_are_keyed_and_read_back_whole(fairlead: CommandLine, topic: str) -> None:
    """Records that were typed as lines are read back with the same keys, headers, partition and encoding."""
    fairlead(
        "produce", topic, "--key-separator", ":", "-H", "a:1", "--partition", "1", typed=b"k1:v1\nk2:v2\n"
    )

    records = [
        json.loads(line)
        for line in fairlead("consume", topic, "-o", "start", "-e", "--output", "json").splitlines()
    ]
    as_base64 = fairlead("consume", topic, "--from-beginning", "-e", "--encoding", "base64", "-f", r"%k=%v\n")

    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in records] == [
        (1, 0, "k1", "v1"),
        (1, 1, "k2", "v2"),
    ]
    assert all(row["headers"] == [["a", "1"]] and row["timestamp"].endswith("Z") for row in records)
    assert as_base64 == "azE==djE=\nazI==djI=\n"


def test_offsets_outside_the_log_are_named(fairlead: CommandLine, topic: str) -> None:
    """An offset outside the log is named on stderr, and the nearest valid offset is used."""
    fairlead("produce", topic, "--partition", "0", typed=b"a\nb\nc\n")

    beyond = fairlead("consume", topic, "--partition", "0", "-o", "99", "-e")
    told_beyond = fairlead.errors
    fairlead("topic", "trim", topic, "--partition", "0", "--before", "2")
    below = fairlead("consume", topic, "--partition", "0", "-o", "0", "-e")

    assert (beyond, below) == ("", "c\n")
    assert told_beyond == f"{topic}-0 ends at offset 3; there is no offset 99, reading starts at 3\n"
    assert fairlead.errors == f"{topic}-0 begins at offset 2; there is no offset 0, reading starts at 2\n"


def test_a_pipe_gets_the_whole_id_of_the_longest_name(fairlead: CommandLine) -> None:
    """Ids are printed in full in a pipe, even for the longest topic name, so that programs can use them."""
    name = "n" * 249
    created = json.loads(fairlead("topic", "create", name, "--output", "json"))

    rows = [line.split("\t") for line in fairlead("topic", "list").splitlines()]

    assert [name, "1", "1", created["topic_id"]] in rows


def test_topics_are_altered_and_trimmed(fairlead: CommandLine, topic: str) -> None:
    """A topic is altered and trimmed, its new state is printed as text or JSON, and a refusal has its exit code."""
    fairlead("produce", topic, "--partition", "0", typed=b"a\nb\nc\n")

    altered = json.loads(fairlead("topic", "alter", topic, "-c", "retention.ms=86400000", "--output", "json"))
    grown = fairlead("topic", "alter", topic, "-p", "3", "--unset", "retention.ms")
    trimmed = fairlead("topic", "trim", topic, "--partition", "0", "--before", "1")
    emptied = json.loads(
        fairlead("topic", "trim", topic, "--partition", "0", "--before", "-1", "--output", "json")
    )

    assert altered["config"]["retention.ms"] == {"value": "86400000", "source": "topic"}
    assert "partitions\t3\n" in grown
    assert trimmed == f"{topic}-0 begins at offset 1\n"
    assert emptied == {"topic": topic, "partition": 0, "low_watermark": 3}
    fairlead("topic", "alter", topic, code=2)
    fairlead("topic", "alter", topic, "-p", "1", code=4)
    fairlead("topic", "alter", topic, "-c", "no.such.setting=1", code=4)
    fairlead("topic", "trim", topic, "--partition", "0", "--before", "99", code=4)
    fairlead("topic", "trim", topic, "--partition", "9", "--before", "0", code=3)
    fairlead("topic", "trim", "nowhere", "--partition", "0", "--before", "0", code=3)


def test_the_cluster_is_configured(fairlead: CommandLine) -> None:
    """A cluster setting is set, listed with its source, and unset."""
    setting = "log.retention.check.interval.ms"
    before = json.loads(fairlead("cluster", "config", "--output", "json"))[setting]
    changed = json.loads(fairlead("cluster", "config", "-c", f"{setting}=60000", "--output", "json"))[setting]
    after = json.loads(fairlead("cluster", "config", "--unset", setting, "--output", "json"))[setting]

    assert changed == {"value": "60000", "source": "cluster"}
    assert after == before
    fairlead("cluster", "config", "-c", "nonsense", code=2)
    fairlead("cluster", "config", "-c", f"{setting}=soon", code=4)


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "create"),
        ("produce",),
        ("completion",),
        ("broker", "start"),
        ("operator", "start"),
    ],
)
def test_the_help_shows_an_example(fairlead: CommandLine, command: tuple[str, ...]) -> None:
    """The help of a command shows an example, even for commands of optional packages."""
    text = fairlead(*command, "--help")

    assert f"Usage: fairlead {' '.join(command)} [OPTIONS]" in text
    assert f"\n  Example: fairlead {' '.join(command)}" in text


def test_verbose_prints_partition_and_offsets(fairlead: CommandLine, topic: str) -> None:
    """Partition and offsets of sent records are printed with `-v` only."""
    quiet = fairlead("produce", topic, "--partition", "0", typed=b"a\n")
    told = fairlead("produce", topic, "--partition", "0", "-v", typed=b"b\nc\n")
    unacknowledged = fairlead("produce", topic, "--partition", "0", "-v", "--acks", "0", typed=b"d\ne\n")

    assert quiet == ""
    assert f"{topic}-0 offsets 1 to 2" in told
    assert unacknowledged == f"{topic}-0 sent 2\n"


def test_the_forms_of_a_start_choose_the_records(fairlead: CommandLine, topic: str) -> None:
    """Records to read are chosen by an offset, the last N, or a time before or after all records."""
    fairlead("produce", topic, "--partition", "0", typed=b"".join(b"%d\n" % number for number in range(10)))

    def read(*position: str) -> list[str]:
        return fairlead("consume", topic, "--partition", "0", "-e", *position).split()

    assert read("-o", "7") == ["7", "8", "9"]
    assert read("-o", "-2") == ["8", "9"]
    assert read("-o", "-99") == [str(number) for number in range(10)]
    assert read("-o", "@2000-01-01T00:00:00Z", "-n", "1") == ["0"]
    assert read("-o", "@2000-01-01T00:00:00Z:2000-01-02T00:00:00Z") == []
    assert read("-o", "end") == []


def test_a_table_file_is_loaded_keyed_by_its_column(
    fairlead: CommandLine, topic: str, tmp_path: Path
) -> None:
    """Rows of a CSV file become JSON records keyed by a column, and no progress bar is drawn without a terminal."""
    path = tmp_path / "rows.csv"
    path.write_text("id,n\na,1\nb,2\na,3\n", encoding="utf-8")

    out = fairlead("produce", topic, "--file", str(path), "--key-column", "id", "--compression", "zstd")
    lines = fairlead("consume", topic, "--from-beginning", "-e", "-f", r"%k %v\n").splitlines()

    assert out == ""
    assert fairlead.errors == ""
    assert sorted(lines) == ['a {"id":"a","n":1}', 'a {"id":"a","n":3}', 'b {"id":"b","n":2}']


def test_the_cluster_shows_its_one_broker(fairlead: CommandLine, dev_broker: str) -> None:
    """A cluster of one broker is shown with its id, its controller and the address that clients use."""
    document = json.loads(fairlead("cluster", "info", "--output", "json"))

    assert [broker["address"] for broker in document["brokers"]] == [dev_broker]
    assert fairlead("version").startswith("fairlead ")


def test_json_documents_are_printed_as_they_are(fairlead: CommandLine, topic: str) -> None:
    """Records with JSON values are printed one per line for any parser: numbers keep their digits, bytes are base64."""
    deep = "[" * 10**5 + "]" * 10**5
    stored = ['{"a": 1.10, "b": 12345678901234567890.5}', "NaN", "1e999", '"\\ud800"', deep, "null", '"é"']
    fairlead("produce", topic, "--partition", "0", typed="".join(f"{text}\n" for text in stored).encode())

    lines = fairlead(
        "consume", topic, "-o", "start", "-e", "--output", "json", "--encoding", "json"
    ).splitlines()
    values = [json.loads(line, parse_constant=pytest.fail)["value"] for line in lines]

    assert f'"value": {stored[0]}, "headers": []' in lines[0]
    assert [base64.b64decode(value["base64"]).decode() for value in values[1:5]] == stored[1:5]
    assert values[5:] == [None, "é"]


@pytest.mark.parametrize(
    "arguments", [("topic", "list"), ("topic", "list", "--output", "json"), ("version",)]
)
def test_output_that_is_lost_is_no_success(
    dev_broker: str, shell_environment: dict[str, str], arguments: tuple[str, ...]
) -> None:
    """When standard output is a file on a full disk, the error is reported in one line and by the exit code."""
    assert shell_environment["FAIRLEAD_BOOTSTRAP"] == dev_broker
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            ["fairlead", *arguments], env=shell_environment, stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert ended.returncode == 1
    assert ended.stderr.decode().splitlines() == ["error: [Errno 28] No space left on device"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "closed",
    [*(pytest.param(each, marks=pytest.mark.scenario) for each in ("<&-", ">&-", "2>&-")), "<&- >&- 2>&-"],
    ids=["input", "output", "errors", "all"],
)
def test_closed_streams_disturb_no_command(
    dev_broker: str, shell_environment: dict[str, str], topic: str, closed: str
) -> None:
    """A command that does not use a closed stream ends as usual."""
    assert shell_environment["FAIRLEAD_BOOTSTRAP"] == dev_broker
    command = f"fairlead produce {topic} -v {closed} && fairlead topic describe {topic} {closed}"
    ended = subprocess.run(
        ["bash", "-c", command], env=shell_environment, input=b"", capture_output=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, b"")
