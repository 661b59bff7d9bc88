"""Every problem that a client can meet has its page in the reference."""

from __future__ import annotations

import checkout
from fairlead_api.problems import CATALOGUE

PAGES = checkout.ROOT / "docs/reference/problems"


def test_every_problem_has_its_page_and_every_page_its_problem() -> None:
    """Every problem of the catalogue has a page in docs/reference/problems, and every page but the index a problem."""
    pages = {path.stem for path in PAGES.glob("*.md")} - {"index", "README"}

    assert pages == set(CATALOGUE)
