"""Output of `fairlead group` for incomplete answers."""

from __future__ import annotations

import pytest
import typer

from fairlead.cli.session import ExitCode
from fairlead.cli.verbs.group import _cell, _print_problems
from fairlead_api.bodies.group_answers import AssignedPartitions, ResetOffset
from fairlead_api.problems import ProblemError
from refusals import missing

MOVED = ResetOffset(topic="orders", topic_id="id", partition=0, before=5, after=0)


def test_a_part_that_failed_is_named_and_ends_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The command names each failed partition and ends with an error, although other partitions succeeded."""
    problem = ProblemError("no_leader", "orders-1 has no leader now")
    left = ResetOffset(
        topic="orders", topic_id="id", partition=1, before=7, after=None, problem=problem.to_document()
    )

    with pytest.raises(typer.Exit) as ended:
        _print_problems([MOVED, left], ExitCode.REFUSED)

    assert ended.value.exit_code == ExitCode.REFUSED
    assert missing(capsys.readouterr().err, "orders-1") == []


def test_a_whole_answer_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """An answer without problems causes no message and no exit code."""
    _print_problems([MOVED], ExitCode.REFUSED)

    assert capsys.readouterr().err == ""


def test_partitions_stand_in_the_form_that_a_reset_takes() -> None:
    """Partitions are printed in the format that --topic accepts; a member without partitions has a dash."""
    assigned = [AssignedPartitions(topic=name, topic_id="id", partitions=[0, 2]) for name in ("a", "b")]

    assert _cell(assigned) == "a:0,2 b:0,2"
    assert _cell([]) == "-"
