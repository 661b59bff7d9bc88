"""The command line in a real terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_line_kit import CommandLine, terminal_window

ROWS = 400_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "suffix",
    [
        ".ndjson",
        ".parquet",
        *(pytest.param(each, marks=pytest.mark.scenario) for each in (".csv", ".arrow", ".arrows")),
    ],
)
def test_a_file_shows_its_progress(
    fairlead: CommandLine, shell_environment: dict[str, str], tmp_path: Path, suffix: str
) -> None:
    """The progress of a file is a bar with name and size; the bar is full at the end, and a pipe gets no bar."""
    path = written(tmp_path / f"rows{suffix}")
    topic = f"bar{suffix}"
    fairlead("topic", "create", topic)

    with terminal_window(shell_environment, "produce", topic, "--file", str(path)) as window:
        code = window.exit_code(120)

    size = f"{path.stat().st_size / 1_000_000:.1f}"
    [row] = json.loads(fairlead("topic", "offsets", topic, "--output", "json"))
    assert code == 0, window.shown
    assert path.name in window.shown
    assert "━" in window.shown
    assert f"{size}/{size} MB" in window.shown
    assert row["records"] == ROWS


def written(path: Path) -> Path:
    """Write enough rows for a visible progress bar, in the format that the file's name indicates."""
    table = pa.table({"id": pa.array(range(ROWS)), "text": pa.array(["some text"]).take([0] * ROWS)})
    match path.suffix:
        case ".csv":
            path.write_text("id,text\n" + "1,some text\n" * ROWS, encoding="utf-8")
        case ".ndjson":
            path.write_text('{"id":1,"text":"some text"}\n' * ROWS, encoding="utf-8")
        case ".parquet":
            pq.write_table(table, path, compression="none")
        case _:
            make = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
            with make(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=ROWS // 8)
    return path


def test_deleting_a_topic_asks(fairlead: CommandLine, shell_environment: dict[str, str]) -> None:
    """A topic is kept, with exit code 1, when its deletion is not confirmed, and deleted otherwise."""
    fairlead("topic", "create", "precious")

    with terminal_window(shell_environment, "topic", "delete", "precious") as window:
        window.read_until("Delete topic precious and all its records? [y/N]")
        window.press("n\n")
        refused = window.exit_code()
    fairlead("topic", "describe", "precious")
    with terminal_window(shell_environment, "topic", "delete", "precious") as window:
        window.read_until("[y/N]")
        window.press("y\n")
        agreed = window.exit_code()

    assert (refused, agreed) == (1, 0)
    fairlead("topic", "describe", "precious", code=3)


def test_an_unclean_election_shows_the_logs_and_asks(
    fairlead: CommandLine, shell_environment: dict[str, str]
) -> None:
    """The end of each replica's log is shown first; without a confirmation, no leader is elected, with exit code 1."""
    fairlead("topic", "create", "risky")
    fairlead("produce", "risky", typed=b"1\n2\n3\n")
    command = ("partition", "elect", "risky", "0", "--kind", "unclean")

    codes = []
    for answer in ("n", "y"):
        with terminal_window(shell_environment, *command) as window:
            window.read_until("LOG END")
            window.read_until("3")
            window.read_until("[y/N]")
            window.press(f"{answer}\n")
            codes.append(window.exit_code())

    assert codes == [1, 0]


def test_typed_lines_are_sent_one_by_one_until_ctrl_d(
    fairlead: CommandLine, shell_environment: dict[str, str]
) -> None:
    """A record is stored when Enter is pressed, before the program ends."""
    fairlead("topic", "create", "typed")

    with terminal_window(shell_environment, "produce", "typed", "-v") as window:
        window.press("first\n")
        window.read_until("typed-0 offsets 0 to 0")
        window.press("second\n")
        window.read_until("typed-0 offsets 1 to 1")
        window.press("\x04")
        code = window.exit_code()

    assert code == 0
    assert fairlead("consume", "typed", "--from-beginning", "-e") == "first\nsecond\n"


def test_ctrl_c_ends_a_waiting_command(fairlead: CommandLine, shell_environment: dict[str, str]) -> None:
    """A producer that waits for a line and a consumer that waits for records end at Ctrl-C."""
    fairlead("topic", "create", "waiting")

    with terminal_window(shell_environment, "produce", "waiting", "-v") as window:
        window.press("one\n")
        window.read_until("waiting-0 offsets 0 to 0")
        window.press("\x03")
        producer_code = window.exit_code(10)
    with terminal_window(shell_environment, "consume", "waiting", "--from-beginning") as window:
        window.read_until("one")
        window.press("\x03")
        consumer_code = window.exit_code(10)

    assert (producer_code, consumer_code) == (0, 0)
