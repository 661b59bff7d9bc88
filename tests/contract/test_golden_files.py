"""The folder of golden data holds exactly what the program describes."""

from __future__ import annotations

import golden
import snapshot


def test_every_golden_file_has_a_subject() -> None:
    """No file is left over, and none is missing."""
    assert sorted(path.name for path in golden.FOLDER.iterdir()) == sorted(
        f"{name}.json" for name in snapshot.SUBJECTS
    )


def test_a_golden_file_is_written_as_the_program_writes() -> None:
    """Each golden file has the form that the program writes, so that the next change shows no other difference."""
    for name in snapshot.SUBJECTS:
        assert (golden.FOLDER / f"{name}.json").read_text(encoding="utf-8") == golden.rendered(
            golden.read(name)
        )


def test_a_sentence_is_no_part_of_a_schema() -> None:
    """Sentences are removed from a schema, and fields with the same names stay."""
    schema = {
        "description": "A sentence.",
        "required": ["title", "message"],
        "properties": {"title": {"type": "string", "title": "Title"}, "message": {"type": "string"}},
    }

    assert golden.without_texts(schema) == {
        "required": ["message", "title"],
        "properties": {"title": {"type": "string"}, "message": {"type": "string"}},
    }
