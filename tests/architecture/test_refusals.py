"""Tests assert types, codes and data of errors, and neither their sentences nor patterns of sentences."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import checkout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def patterns(path: Path) -> Iterator[str]:
    """Yield the places at which a test matches the message of an expected error by a pattern."""
    for node in ast.walk(ast.parse((checkout.ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and any(keyword.arg == "match" for keyword in node.keywords):
            yield f"{path}:{node.lineno}"


def test_messages_are_not_matched_by_patterns() -> None:
    """No test matches a message by a pattern; `tests/plugins/refusals.py` compares codes and data."""
    found = [place for path in checkout.python_files("tests") for place in patterns(path)]

    assert found == []


def test_a_pattern_is_found(tmp_path: Path) -> None:
    """The check finds a test that matches an expected error by a pattern."""
    path = tmp_path / "test_part.py"
    path.write_text('with pytest.raises(ValueError, match="is odd"):\n    part()\n', encoding="utf-8")

    assert list(patterns(path)) == [f"{path}:1"]
