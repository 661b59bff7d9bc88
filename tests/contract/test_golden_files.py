"""The folder of golden data has exactly the files that the program describes."""

from __future__ import annotations

import golden
import snapshot


def test_every_golden_file_has_a_subject() -> None:
    """Every golden file has a subject, and every subject has a golden file."""
    assert sorted(path.name for path in golden.FOLDER.iterdir()) == sorted(
        f"{name}.json" for name in snapshot.SUBJECTS
    )


def test_a_golden_file_is_written_as_the_program_writes() -> None:
    """A golden file has the format that the program writes, so that the next change shows no other difference."""
    for name in snapshot.SUBJECTS:
        assert (golden.FOLDER / f"{name}.json").read_text(encoding="utf-8") == golden.rendered(
            golden.read(name)
        )


def test_a_sentence_is_no_part_of_a_schema() -> None:
    """The description of a schema omits prose, but keeps properties with the name of a prose key, such as `title`."""
    schema = {
        "description": "A sentence.",
        "required": ["title", "message"],
        "properties": {"title": {"type": "string", "title": "Title"}, "message": {"type": "string"}},
    }

    assert golden.without_texts(schema) == {
        "required": ["message", "title"],
        "properties": {"title": {"type": "string"}, "message": {"type": "string"}},
    }
