"""The prose check reports forbidden words with the right line in every kind of text, and accepts plain sentences."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import checkout


@pytest.fixture(scope="module")
def prose() -> Any:
    """Load .ci/prose.py as a module."""
    spec = importlib.util.spec_from_file_location("ci_prose", checkout.ROOT / ".ci/prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_prose"] = module  # dataclasses looks up its module in sys.modules
    spec.loader.exec_module(module)
    return module


def found(prose: Any, path: str, text: str) -> list[tuple[int, str]]:
    """Return the line and the word of each finding."""
    return [(finding.line, finding.word.name) for finding in prose.findings(path, text)]


def test_python_is_read_in_docstrings_fields_comments_and_texts(prose: Any) -> None:
    """Every kind of text in Python is read with its line; some words are findings only at the start of a docstring."""
    text = (
        '"""A room for whoever asks."""\n'
        "class Part:\n"
        "    limit: int\n"
        '    """Of the ten seconds of a stop."""\n'
        "    def hear(self) -> None:\n"
        '        """Hear that a broker is gone."""\n'
        "        # Nobody waits\n"
        "        # any more.\n"
        "        log.info(f'group {name} begins anew here')\n"
    )

    assert sorted(found(prose, "broker/part.py", text)) == [
        (1, "whoever"),
        (4, "Of"),
        (6, "Hear"),
        (7, "nobody"),
        (9, "anew"),
    ]


def test_texts_of_tests_are_data(prose: Any) -> None:
    """Literals of a test are not read, because they are data, unlike docstrings and comments."""
    text = 'def test_a() -> None:\n    """Nobody is left."""\n    assert answer == "it begins anew here"\n'

    assert found(prose, "tests/unit/test_part.py", text) == [(2, "nobody")]


def test_markdown_is_read_outside_code(prose: Any) -> None:
    """The check skips code in Markdown, and reports a match on two lines at the first line of its paragraph."""
    text = (
        "# Page\n\n```sh\necho nobody\n```\n\nThe value `nobody` stays. It is told\nto the one\nthat asks.\n"
    )

    assert found(prose, "docs/page.md", text) == [(7, "the one that"), (7, "is told")]


def test_comments_of_other_files_are_read(prose: Any) -> None:
    """The check reads comments in YAML files, Dockerfiles and Makefiles, and does not read values."""
    assert found(prose, "charts/values.yaml", "# -- Let nobody in.\nname: nobody\n") == [(1, "nobody")]
    assert found(prose, "Makefile", "run: setup ## start it anew\n") == [(1, "anew")]


@pytest.mark.parametrize(
    "sentence",
    [
        "Users who know Kafka find the differences here.",
        "The broker that leads the partition answers.",
        "With acks=all the answer waits.",
        "A who-is query.",
    ],
)
def test_plain_sentences_pass(prose: Any, sentence: str) -> None:
    """Sentences with a relative pronoun after a noun for people, or with a broker as the subject, are not findings."""
    assert found(prose, "docs/page.md", sentence) == []


def test_every_word_says_what_to_write_instead(prose: Any) -> None:
    """Every forbidden word has a replacement, because a check that only forbids does not help a writer."""
    assert all(word.instead and word.kinds for word in prose.WORDS)
    assert len({word.name for word in prose.WORDS}) == len(prose.WORDS)


def test_every_skipped_place_exists(prose: Any) -> None:
    """Every skipped path exists, because the path of a moved file would skip nothing."""
    assert [place for place in prose.SKIPPED if not (checkout.ROOT / place).exists()] == []


def test_without_paths_every_tracked_file_is_read(
    prose: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check reads every tracked file, or the files in the given folders."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "docs/page.md").write_text("The broker answers.\n")
    (tmp_path / "new/page.md").write_text("The log begins anew.\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "tracked", lambda: ["docs/page.md", "new/page.md"])

    assert prose.main([]) == 1
    assert "new/page.md:1: anew:" in capsys.readouterr().err
    assert prose.main(["docs"]) == 0
