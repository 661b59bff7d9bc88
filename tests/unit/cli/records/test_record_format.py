"""The percent format of `-f`: records are printed, and lines are parsed."""

from __future__ import annotations

import pytest

from fairlead.cli.records.record_format import FormatError, PrintedRecord, parser, printer
from refusals import raises

RECORD = PrintedRecord(
    topic="orders",
    partition=3,
    offset=42,
    timestamp_us=1_356_998_400_000_000,
    key=b"k\xff",
    value=b"v",
    headers=(("a", b"1"), ("a", None)),
)


def test_every_verb_and_escape_prints_its_part_of_the_record() -> None:
    """Each verb prints one part of the record, with its bytes unchanged."""
    text = printer(r"%t-%p@%o %d %k=%v [%h] 100%%\t\\\n")(RECORD)

    assert text == b"orders-3@42 2013-01-01T00:00:00.000000Z k\xff=v [a=1,a=] 100%\t\\\n"


def test_null_key_and_value_print_as_nothing() -> None:
    """A null key and a null value are printed as empty text."""
    record = PrintedRecord("t", 0, 0, 0, None, None, ())

    assert printer("<%k|%v|%h>")(record) == b"<||>"


@pytest.mark.parametrize(
    ("template", "named"),
    [("%x", "%x"), ("100%", "unknown verb '%'"), (r"\q", r"\q"), ("\\", "unknown escape")],
)
def test_what_cannot_be_understood_is_named(template: str, named: str) -> None:
    """A format with an unknown verb or escape is refused; the error names the wrong text and lists allowed verbs."""
    with pytest.raises(FormatError) as refused:
        printer(template)

    assert named in str(refused.value)
    assert "allowed" in str(refused.value)


@pytest.mark.parametrize(
    ("template", "line", "expected"),
    [
        ("%v", b"plain", (None, b"plain")),
        (r"%k %v\n", b"a b c", (b"a", b"b c")),
        ("%v<%k>", b"value<key>", (b"key", b"value")),
        (r"%k\t%v", b"\tx", (b"", b"x")),
        ("[%k]%%%v", b"[k]%v", (b"k", b"v")),
    ],
)
def test_a_line_is_taken_apart_at_the_text_between(
    template: str, line: bytes, expected: tuple[bytes | None, bytes | None]
) -> None:
    """A line is split at the first occurrence of the text between two verbs."""
    assert parser(template)(line) == expected


@pytest.mark.parametrize("template", ["%k", "%k%v", "%v %v", "%o %v", "text"])
def test_a_format_that_cannot_give_records_is_refused(template: str) -> None:
    """When lines are read, a format without a value, with a repeated verb, or with adjacent verbs is refused."""
    with pytest.raises(FormatError):
        parser(template)


def test_a_line_that_does_not_fit_is_named() -> None:
    """The error for an invalid line shows the line and the format."""
    with raises(FormatError, "%k:%v"):
        parser("%k:%v")(b"no separator")
