"""Tests assert the types, codes and data of errors, not their sentences or patterns of sentences."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

import checkout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOUR_WORDS: Final = re.compile(r"[a-z]+ [a-z]+ [a-z]+ [a-z]+")
SENTENCES_MAX: Final = 24
"""Maximum number of assertions that may compare a sentence; a lower number is always welcome."""


def patterns(path: Path) -> Iterator[str]:
    """Yield the places at which a test matches the message of an expected error by a pattern."""
    for node in ast.walk(ast.parse((checkout.ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and any(keyword.arg == "match" for keyword in node.keywords):
            yield f"{path}:{node.lineno}"


def test_messages_are_not_matched_by_patterns() -> None:
    """No test matches a message by a pattern; `tests/plugins/refusals.py` compares codes and data."""
    found = [place for path in checkout.python_files("tests") for place in patterns(path)]

    assert found == []


def sentences(path: Path) -> Iterator[str]:
    """Yield the places at which an assertion contains four lower-case words in a row."""
    for node in ast.walk(ast.parse((checkout.ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                if (
                    isinstance(part, ast.Constant)
                    and isinstance(part.value, str)
                    and FOUR_WORDS.search(part.value)
                ):
                    yield f"{path}:{part.lineno}"


def test_assertions_compare_codes_and_data() -> None:
    """At most `SENTENCES_MAX` assertions outside the tests of pages and commands compare a sentence."""
    paths = [
        path
        for path in checkout.python_files("tests")
        if "cli" not in path.parts and not any(part in path.name for part in ("how_to", "page", "docs"))
    ]
    found = [place for path in paths for place in sentences(path)]

    assert len(found) <= SENTENCES_MAX, found


def test_a_pattern_is_found(tmp_path: Path) -> None:
    """The check finds a test that matches an expected error by a pattern."""
    path = tmp_path / "test_part.py"
    path.write_text('with pytest.raises(ValueError, match="is odd"):\n    part()\n', encoding="utf-8")

    assert list(patterns(path)) == [f"{path}:1"]


def test_a_sentence_is_found(tmp_path: Path) -> None:
    """The check finds an assertion that compares a sentence."""
    path = tmp_path / "test_part.py"
    path.write_text('assert "the broker does not answer" in text\n', encoding="utf-8")

    assert list(sentences(path)) == [f"{path}:1"]
