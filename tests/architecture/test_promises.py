"""Every promise of the README has a test that `make test` runs, as docs/reference/promises.md says."""

from __future__ import annotations

import re

import pytest

import checkout
from default_tests import run_by_default

PAGE = checkout.ROOT / "docs" / "reference" / "promises.md"
ROW = re.compile(r"^\| ([^|`]+) \| (`.*`) \|$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, list[str]]]:
    """Return the promises and the tests that each row names."""
    return [(promise, SPAN.findall(named)) for promise, named in ROW.findall(PAGE.read_text())]


def promised() -> list[str]:
    """Return the entries of the list in the README."""
    listed = (checkout.ROOT / "README.md").read_text().partition("## What works")[2].partition("\n## ")[0]
    return [" ".join(entry.split()) for entry in re.split(r"^- ", listed, flags=re.MULTILINE)[1:]]


def test_every_promise_has_its_row() -> None:
    """The page of promises has one row for each entry of the README's list, in the same order and the same words."""
    found = [promise for promise, _ in rows()]

    assert len(found) == len(promised())
    assert [
        row for row, entry in zip(found, promised(), strict=True) if row.lower() not in entry.lower()
    ] == []


def test_every_named_test_is_run_by_make_test() -> None:
    """Each test that the page of promises names exists and is run by `make test`."""
    assert [each for _, named in rows() for each in named if not run_by_default(each)] == []


@pytest.mark.parametrize(
    "named",
    [
        "tests/kubernetes/test_pods_rolls.py",
        "tests/faults/test_power_cuts.py::test_that_does_not_exist",
        "tests/architecture/test_nothing.py",
    ],
)
def test_a_scenario_and_a_missing_test_are_noticed(named: str) -> None:
    """A promise needs an existing test that `make test` runs: a missing test or a file of scenarios is refused."""
    assert not run_by_default(named)
