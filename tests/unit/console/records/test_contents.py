"""Contents of records as text for people: no character that a browser would hide or reorder remains in the text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_console.records.cloud_events import cloud_event
from fairlead_console.records.contents import hexadecimal, is_text, runs
from fairlead_console.records.json_trees import NODES_MAX, Node, tree

HOSTILE = [
    "\x00",
    "\x1b",
    "\x7f",
    "\x85",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u200f",
    "\ufeff",
    "\U000e0041",
    "\ue000",
]


@given(st.binary(max_size=200) | st.text().map(lambda text: text.encode(errors="replace")))
def test_plain_runs_have_no_special_character(data: bytes) -> None:
    """Plain runs contain no control character, direction mark or invalid byte; the rest of the text is kept."""
    found = runs(data)
    plain = "".join(run.text for run in found if not run.is_special)

    assert [
        each
        for each in plain
        if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co") and each not in "\t\n"
    ] == []
    if data.isascii() and all(32 <= byte < 127 for byte in data):
        assert plain.encode() == data


@pytest.mark.parametrize("character", HOSTILE)
def test_a_special_character_has_a_name(character: str) -> None:
    """A character that a browser does not show literally is replaced with a mark between the surrounding texts."""
    found = runs(f"a{character}b".encode())

    assert [run.is_special for run in found] == [False, True, False]
    assert found[1].text.isascii()


def test_broken_bytes_and_heaps_of_accents_are_marks() -> None:
    """Bytes that are not UTF-8 are marked one by one, and more than four accents on a letter are also marked."""
    assert [(run.text, run.is_special) for run in runs(b"\xc3(\xff\xfe")] == [
        ("C3", True),
        ("(", False),
        ("FF FE", True),
    ]
    assert sum(len(run.text) for run in runs(("z" + "\u0301" * 9).encode()) if not run.is_special) == 5


def test_bytes_are_text_or_hexadecimal() -> None:
    """UTF-8 that ends in the middle of a character counts as text; control characters do not."""
    assert is_text("naïve".encode()[:3])
    assert not is_text(b"\xff\xfe\x00")
    assert not is_text(b"a\x00")
    assert hexadecimal(b"Fairlead\x00log") == (
        "00000000  46 61 69 72 6c 65 61 64  00 6c 6f 67              Fairlead·log"
    )


def test_a_tree_keeps_what_was_written() -> None:
    """Repeated names, long numbers and their digits are kept; content that is not JSON has no tree."""
    found = tree(b'{"n": 123456789012345678901234567890, "n": 1.10, "b": [true, null, {}]}')

    assert found is not None
    assert [child.text[0].text for child in found.children[:2]] == ["123456789012345678901234567890", "1.10"]
    assert [child.kind for child in found.children[2].children] == ["word", "word", "object"]
    assert [tree(each) for each in (b"{", b"NaN", b"\xff", b"[" * 100_000, b'"' + b"x" * 2**21 + b'"')] == [
        None
    ] * 5


@pytest.mark.parametrize("document", [b"[" * 200 + b"]" * 200, b"[" + b"1," * 9999 + b"1]"])
def test_a_tree_is_limited(document: bytes) -> None:
    """A deep or long document has a tree of a limited size, which states how much is omitted."""
    found = tree(document)

    def nodes(node: Node) -> list[Node]:
        return [node, *(each for child in node.children for each in nodes(child))]

    assert found is not None
    assert len(nodes(found)) <= NODES_MAX + 100
    assert [each.kind for each in nodes(found)].count("more") == 1


def test_events_are_found_in_both_modes() -> None:
    """An event has attributes in headers (binary) or in the value (structured); other records are not events."""
    binary = cloud_event(
        [("ce_specversion", b"1.0"), ("ce_id", b"7"), ("content-type", b"text/plain")], b"hi"
    )
    structured = cloud_event(
        [("content-type", b"application/cloudevents+json; charset=utf-8")],
        b'{"specversion": "1.0", "id": "7", "data_base64": "aGk="}',
    )

    assert binary is not None
    assert structured is not None
    assert dict(binary.attributes) == {"specversion": b"1.0", "id": b"7", "datacontenttype": b"text/plain"}
    assert dict(structured.attributes) == {"specversion": b"1.0", "id": b"7"}
    assert binary.data == structured.data == b"hi"
    assert cloud_event([("content-type", b"application/json")], b"{}") is None
    assert cloud_event([("content-type", b"application/cloudevents+json")], b"[1") is None
