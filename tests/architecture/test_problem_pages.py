"""Every problem that a client can meet has its page in the reference."""

from __future__ import annotations

import checkout
from fairlead_api.problems import CATALOGUE

PAGES = checkout.ROOT / "docs/reference/problems"


def test_every_problem_has_its_page_and_every_page_its_problem() -> None:
    """The folder docs/reference/problems has one page for each problem of the catalogue, and an index."""
    pages = {path.stem for path in PAGES.glob("*.md")} - {"index", "README"}

    assert pages == set(CATALOGUE)
