"""The decision records have the same form and are listed in one index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import checkout

FOLDER = checkout.ROOT / "docs/decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
HEADINGS = ["Context", "Decision", "Consequences", "What would change our mind"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_the_four_parts(record: Path) -> None:
    """A decision record has the four parts in order: context, decision, consequences, what would change our mind."""
    text = record.read_text()

    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[:4] == HEADINGS


def test_numbers_are_given_once() -> None:
    """Numbers of decision records are unique."""
    numbers = [record.name[:4] for record in RECORDS]

    assert sorted(set(numbers)) == numbers


def test_the_index_lists_every_record() -> None:
    """The index docs/decisions/index.md links every decision record and nothing else."""
    linked = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (FOLDER / "index.md").read_text())

    assert sorted(linked) == [record.name for record in RECORDS]
