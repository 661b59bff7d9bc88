"""Answers as text: table cells are never truncated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli.printing import print_pairs, print_rows

if TYPE_CHECKING:
    import pytest

LONGEST_NAME = "n" * 249
IDENTIFIER = "0199f0c2-5a4e-7cc3-98c4-dc0c0c07398f"


def test_a_pipe_gets_whole_cells_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    """If the output is a pipe, cells are complete and separated by tabs, without padding or a line below the header."""
    print_rows(["TOPIC", "PARTITIONS", "ID"], [(LONGEST_NAME, 3, IDENTIFIER), ("short", 1, None)])

    assert capsys.readouterr().out.splitlines() == [
        "TOPIC\tPARTITIONS\tID",
        f"{LONGEST_NAME}\t3\t{IDENTIFIER}",
        "short\t1\t-",
    ]


def test_a_terminal_gets_whole_cells_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and ids are printed in full even in a narrow terminal window, so that they can be copied."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    print_rows(["TOPIC", "ID"], [(LONGEST_NAME, IDENTIFIER), ("short", IDENTIFIER)])

    lines = capsys.readouterr().out.splitlines()
    assert any(LONGEST_NAME in line and IDENTIFIER in line for line in lines)
    assert any(line.startswith("short ") and IDENTIFIER in line for line in lines)


def test_pairs_in_a_pipe_are_name_tab_value(capsys: pytest.CaptureFixture[str]) -> None:
    """If the output is a pipe, each pair is printed as the name, a tab and the value."""
    print_pairs({"topic": "orders", "id": None})

    assert capsys.readouterr().out == "topic\torders\nid\t-\n"
