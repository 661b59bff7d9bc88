"""Functions that create Markdown, and the note that a page is generated."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Sequence

GENERATED = (
    "<!-- Generated from the catalogues in the code by docs/generate/pages.py; edit those instead. -->\n\n"
)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; bars inside cells are escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def code(text: str) -> str:
    """Return text formatted as code."""
    return f"`{text}`"


def codes(texts: Iterable[str], nothing: str = "") -> str:
    """Return several texts formatted as code, separated by commas."""
    return ", ".join(map(code, texts)) or nothing


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def field_texts(model: type) -> dict[str, str]:
    """Return the docstring below each field of a class, on one line, indexed by the name of the field.

    Pydantic can read field docstrings too, but would add a tenth of a second to the start of a broker.
    """
    [body] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef), f"{model} is not a class"
    return {
        target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body.body)
        if isinstance(field, ast.AnnAssign | ast.Assign)
        and isinstance(
            target := field.target if isinstance(field, ast.AnnAssign) else field.targets[0], ast.Name
        )
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
