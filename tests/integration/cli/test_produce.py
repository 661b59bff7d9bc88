"""Failures of `fairlead produce`: records are not lost silently, and input is not read without effect."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_line_kit import CommandLine

GOOD = 300_000
MIB = 1024 * 1024


@pytest.fixture
def no_auto_creation(fairlead: CommandLine) -> Iterator[None]:
    """Yield a cluster that creates topics only on request."""
    fairlead("cluster", "config", "--broker", "0", "-c", "auto.create.topics.enable=false")
    yield
    fairlead("cluster", "config", "--broker", "0", "--unset", "auto.create.topics.enable")


def stored(fairlead: CommandLine, topic: str) -> int:
    """Return the number of records in a topic with one partition."""
    last = fairlead("consume", topic, "-o", "-1", "-e", "-f", r"%o\n")
    return int(last) + 1 if last else 0


def test_the_lines_before_a_bad_one_are_stored(fairlead: CommandLine) -> None:
    """All lines before a bad line are stored; the message has the line's number and the number of stored records."""
    fairlead("topic", "create", "lines")

    fairlead(
        "produce",
        "lines",
        "--key-separator",
        ":",
        typed=b"key:value\n" * GOOD + b"bad line\nkey:value\n",
        code=2,
    )

    assert fairlead.errors == (
        f"error: line {GOOD + 1}: 'bad line' does not fit the format '%k:%v'; {GOOD} records are stored\n"
    )
    assert stored(fairlead, "lines") == GOOD


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_input_is_not_done(
    fairlead: CommandLine, shell_environment: dict[str, str], number: signal.Signals
) -> None:
    """Records from an interrupted input are stored and counted, and the exit code reports the interruption."""
    topic = f"interrupted-{number.name}"
    fairlead("topic", "create", topic)
    command = ["fairlead", "produce", topic, "-v"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=shell_environment, **streams) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{topic}-0 offsets 0 to 1\n".encode()
        process.send_signal(number)
        assert process.wait(30) == 1
        told = process.stderr.read().decode().splitlines()

    assert told == [
        "2 records are stored; records read after them are not acknowledged",
        "error: interrupted before the command finished",
    ]
    assert stored(fairlead, topic) == 2


def test_programs_get_the_offsets_of_records(fairlead: CommandLine) -> None:
    """Offsets of each batch are printed as one line of JSON, and are unknown without acknowledgements."""
    fairlead("topic", "create", "told")
    as_json = ("--output", "json")
    told = [
        json.loads(fairlead("produce", "told", *as_json, *more, typed=b"a\nb\nc\n"))
        for more in ((), ("-v",), ("--acks", "0"))
    ]
    batch = {"topic": "told", "partition": 0, "records": 3}

    assert told == [
        {**batch, "base_offset": 0, "last_offset": 2},
        {**batch, "base_offset": 3, "last_offset": 5},
        {**batch, "base_offset": None, "last_offset": None},
    ]
    fairlead("produce", "told", "--output", "yaml", code=2)
    assert fairlead.errors == "error: --output 'yaml' is not supported by this command; allowed: json\n"


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("rows.ndjson", b'{"a":1}\n' * GOOD + b"bad\n", f"rows.ndjson, line {GOOD + 1}"),
        ("rows.csv", b"a,b\n" + b"1,2\n" * GOOD + b"bad\n", "rows.csv: CSV parse error"),
    ],
)
def test_the_rows_before_a_bad_one_are_stored(
    fairlead: CommandLine, tmp_path: Path, name: str, content: bytes, named: str
) -> None:
    """Records of a file are stored up to its first invalid row, which the message names."""
    path = tmp_path / name
    path.write_bytes(content)
    fairlead("topic", "create", name)

    fairlead("produce", name, "--file", str(path), code=2)

    assert fairlead.errors.startswith(f"error: {named}")
    assert fairlead.errors.endswith(f"; {GOOD} records are stored\n")
    assert stored(fairlead, name) == GOOD


def test_a_file_of_records_is_read_back(fairlead: CommandLine, tmp_path: Path) -> None:
    """Records of a Parquet file with a column `value` are read back with the same bytes, keys and headers."""
    path = tmp_path / "records.parquet"
    headers = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]))
    table = pa.table(
        {
            "key": [b"UA", b"AA"],
            "value": [b"\xff\x01", b"plain"],
            "headers": pa.array([[{"key": "from", "value": b"file"}], []], headers),
        }
    )
    pq.write_table(table, path)
    fairlead("topic", "create", "records")

    fairlead("produce", "records", "--file", str(path))
    lines = fairlead(
        "consume", "records", "--from-beginning", "-e", "--output", "json", "--encoding", "base64"
    )
    records = [json.loads(line) for line in lines.splitlines()]

    assert [base64.b64decode(record["value"]) for record in records] == [b"\xff\x01", b"plain"]
    assert [base64.b64decode(record["key"]) for record in records] == [b"UA", b"AA"]
    assert [record["headers"] for record in records] == [[["from", "file"]], []]


def test_a_refusal_in_the_middle_reports_the_stored_lines(
    fairlead: CommandLine, shell_environment: dict[str, str]
) -> None:
    """A size limit lowered after the first line causes a refusal that counts only the first record as stored."""
    fairlead("topic", "create", "short-lived")
    producer = subprocess.Popen(
        ["fairlead", "produce", "short-lived", "-v"],
        env=shell_environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert producer.stdin is not None
    assert producer.stdout is not None
    producer.stdin.write(b"one\n")
    producer.stdin.flush()
    first = producer.stdout.readline()
    fairlead("topic", "alter", "short-lived", "-c", "max.message.bytes=1")

    _, errors = producer.communicate(b"two\n", timeout=60)

    assert first == b"short-lived-0 offsets 0 to 0\n"
    assert producer.returncode == 4
    assert errors.startswith(b"1 record is stored; records read after them are not acknowledged\nerror: ")


def test_a_line_larger_than_a_batch_is_named(fairlead: CommandLine) -> None:
    """A record above the topic's size limit is named, and the records of the lines before it are stored."""
    fairlead("topic", "create", "long", "-c", f"max.message.bytes={MIB}")

    fairlead("produce", "long", typed=b"short\n" + b"x" * (3 * MIB) + b"\nshort\n", code=2)

    assert fairlead.errors == (
        f"error: line 2: longer than the limit of {MIB} bytes for a batch; 1 record is stored\n"
    )
    assert stored(fairlead, "long") == 1


def test_a_topic_is_created_where_the_cluster_allows_it(fairlead: CommandLine) -> None:
    """A topic is created by the first record in `fairlead dev up`, without another command."""
    fairlead("produce", "brand-new", typed=b"hello\n")

    assert fairlead("consume", "brand-new", "--from-beginning", "-e") == "hello\n"


@pytest.mark.usefixtures("no_auto_creation")
def test_an_unknown_topic_is_refused_before_any_input_is_read(
    fairlead: CommandLine, shell_environment: dict[str, str]
) -> None:
    """An unknown topic is refused while standard input is still open and empty."""
    producer = subprocess.Popen(
        ["fairlead", "produce", "nowhere"],
        env=shell_environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert producer.stdin is not None
    assert producer.stderr is not None
    with producer.stdin, producer.stderr:
        code = producer.wait(30)
        errors = producer.stderr.read()

    assert code == 3
    assert b"nowhere" in errors
    fairlead("topic", "describe", "nowhere", code=3)


def test_a_missing_partition_is_refused_before_any_input_is_read(fairlead: CommandLine) -> None:
    """A missing partition is named by its number before any input is read."""
    fairlead("topic", "create", "narrow")

    fairlead("produce", "narrow", "--partition", "7", typed=b"lost?\n", code=3)

    assert "narrow-7" in fairlead.errors
