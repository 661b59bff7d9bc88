"""Markdown as text: tables and the note that a page is generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GENERATED = "<!-- Made from the catalogues of the code by docs/generate/pages.py; change those, not this page. -->\n\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars inside cells are escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def code(text: str) -> str:
    """Return text as code."""
    return f"`{text}`"


def codes(texts: Iterable[str], nothing: str = "") -> str:
    """Return several pieces of code, separated by commas."""
    return ", ".join(map(code, texts)) or nothing


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
