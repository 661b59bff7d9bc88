"""The page docs/explanation/known-traps.md is correct: the tests and the switches that it names exist."""

from __future__ import annotations

import re

import checkout
from default_tests import run_by_default

PAGE = checkout.ROOT / "docs" / "explanation" / "known-traps.md"
SIMULATION = checkout.ROOT / "docs" / "explanation" / "simulation.md"
ROW = re.compile(r"^\| (\d+) \|.*\|(.*)\|$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")


def rows() -> dict[int, list[str]]:
    """Return the proofs that each row names."""
    return {int(number): SPAN.findall(named) for number, named in ROW.findall(PAGE.read_text())}


def test_every_trap_has_its_proof() -> None:
    """Every known trap is listed with at least one test or simulator switch as its proof."""
    found = rows()

    assert list(found) == list(range(1, 31))
    assert all(found.values())


def test_every_named_test_exists() -> None:
    """Every named test is a file, or a test in a file."""
    missing = []
    for span in {span for named in rows().values() for span in named if span.startswith("tests/")}:
        path, _, name = span.partition("::")
        file = checkout.ROOT / path
        if not file.exists() or (name and f"def {name}(" not in file.read_text()):
            missing.append(span)

    assert missing == []


def test_every_trap_has_a_proof_in_make_test() -> None:
    """At least one proof in each row is a switch of the simulator, or a test that `make test` runs."""
    late = [
        number
        for number, named in rows().items()
        if not any(not span.startswith(("tests/", "make ")) or run_by_default(span) for span in named)
    ]

    assert late == []


def test_every_named_switch_is_in_the_table_of_findings() -> None:
    """For each named switch, which drops a rule, the simulator finds a violation within the allowed number of seeds."""
    table = SIMULATION.read_text()
    switches = {
        span
        for named in rows().values()
        for span in named
        if not span.startswith(("tests/", "make ")) and "=" not in span
    }

    assert switches, "the page names no switch"
    assert [switch for switch in sorted(switches) if f"| `{switch}` |" not in table] == []
