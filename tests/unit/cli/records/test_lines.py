"""Lines as records: lines are assembled from pieces of any size and parsed, or refused with their number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from fairlead.cli.options import Encoding
from fairlead.cli.records.lines import LineParser, Pair, decoding, line_parser, read_records, with_nulls
from fairlead.cli.records.record_format import FormatError
from refusals import missing, raises

PLAIN = line_parser(None, None, None)


async def coming(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces, as a pipe delivers them."""
    for piece in pieces:
        yield piece


async def read_until_wrong(
    *pieces: bytes, parse: LineParser = PLAIN, line_bytes_max: int = 100
) -> tuple[list[Pair], str | None]:
    """Return (key, value) of all records up to an invalid line, and the error message, if any."""
    pairs: list[Pair] = []
    try:
        async for records in read_records(coming(pieces), parse, line_bytes_max):
            pairs += [(row["key"], row["value"]) for row in records.to_pylist()]
    except FormatError as error:
        return pairs, str(error)
    return pairs, None


async def test_lines_are_whole_however_their_bytes_come() -> None:
    """Lines are assembled from several pieces, with either kind of line break, empty lines and no final line break."""
    pairs, wrong = await read_until_wrong(b"on", b"e\r", b"\ntwo\n\nth", b"ree")

    assert wrong is None
    assert [value for _, value in pairs] == [b"one", b"two", b"", b"three"]


@pytest.mark.parametrize(
    ("pieces", "good", "line"),
    [
        ((b"a:1\nb:2\nbad\nc:3\n",), 2, 3),
        ((b"a:1\n", b"b:2\n", b"bad\n"), 2, 3),
        ((b"bad\n",), 0, 1),
        ((b"a:1\nbad",), 1, 2),
    ],
)
async def test_a_line_that_does_not_fit_comes_after_those_before_it(
    pieces: tuple[bytes, ...], good: int, line: int
) -> None:
    """The records before a line that does not fit the format are read; the error gives the line's number and text."""
    pairs, wrong = await read_until_wrong(*pieces, parse=line_parser(None, None, ":"))

    assert len(pairs) == good
    assert missing(wrong, line, "'bad'", "'%k:%v'") == []


async def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    """Reading stops at the piece that exceeds the limit, not at the end of the line."""
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        yield b"good\n"
        while True:
            read += 50
            yield b"x" * 50

    with raises(FormatError, 2, 1000):
        _ = [records async for records in read_records(endless(), PLAIN, 1000)]

    assert read <= 1100


async def test_the_longest_line_is_as_long_as_the_limit() -> None:
    """A line of exactly the maximum length is accepted, with either line break, and a longer line is refused."""
    fits, none_wrong = await read_until_wrong(b"x" * 100 + b"\r\n" + b"y" * 100 + b"\n")
    _, wrong = await read_until_wrong(b"x\n" + b"y" * 101 + b"\n")

    assert len(fits) == 2
    assert none_wrong is None
    assert wrong is not None
    assert wrong.startswith("line 2: longer than")


@pytest.mark.parametrize(
    ("pieces", "values"),
    [
        ((b"\xef\xbb\xbfone\r\ntwo\r\n",), [b"one", b"two"]),
        ((b"\xef", b"\xbb\xbfo", b"ne"), [b"one"]),
        ((b"\xef\xbb\xbf" + b"x" * 50, b"x" * 50 + b"\r", b"\n"), [b"x" * 100]),
        ((b"\xef\xbb\xbf\n\xef\xbb\xbftwo\n",), [b"", b"\xef\xbb\xbftwo"]),
        ((b"\xef\xbb\xbf",), []),
        ((b"\xef\xbb\xbf\xff\x00\n",), [b"\xef\xbb\xbf\xff\x00"]),
    ],
    ids=["lines", "in pieces", "the longest line", "the first line alone", "nothing else", "no text"],
)
async def test_a_byte_order_mark_before_text_is_no_part_of_it(
    pieces: tuple[bytes, ...], values: list[bytes]
) -> None:
    """A byte order mark is removed from the first line of text, and kept in binary values."""
    pairs, wrong = await read_until_wrong(*pieces)

    assert wrong is None
    assert [value for _, value in pairs] == values


@pytest.mark.parametrize(
    ("parse", "line", "pair"),
    [
        (line_parser(None, None, ":"), b"a:1", (b"a", b"1")),
        (decoding(PLAIN, Encoding.JSON), b'{"a": 1}', (None, b'{"a": 1}')),
        (decoding(PLAIN, Encoding.BASE64), b"77u/", (None, b"\xef\xbb\xbf")),
    ],
    ids=["key", "json", "base64"],
)
async def test_a_byte_order_mark_stands_before_a_line_of_any_form(
    parse: LineParser, line: bytes, pair: Pair
) -> None:
    """A byte order mark is removed before a line is parsed, but kept in bytes that are encoded in base64."""
    assert await read_until_wrong(b"\xef\xbb\xbf" + line + b"\n", parse=parse) == ([pair], None)


@pytest.mark.parametrize(
    ("encoding", "line", "message"),
    [
        (Encoding.BASE64, b"b'notb64'", "line 1: 'b'notb64'' is not base64"),
        (Encoding.JSON, b"{", "line 1: '{' is not JSON"),
        (Encoding.JSON, b"\xff\x00", r"line 1: '\xff\x00' is not JSON"),
        (Encoding.JSON, b'"\xff"', r"""line 1: '"\xff"' is not JSON"""),
        (Encoding.JSON, b'["' + b"x" * 84 + b'", 1e999]', "line 1: 1e999 is not a number that JSON allows"),
        (Encoding.JSON, b'["' + b"x" * 84 + b'", -Infinity]', "line 1: -Infinity is not a number that JSON"),
    ],
)
async def test_an_encoding_that_is_wrong_is_shown_as_text(
    encoding: Encoding, line: bytes, message: str
) -> None:
    """The error for a wrong encoding shows the line as text, in which only the undecodable bytes are escaped."""
    _, wrong = await read_until_wrong(line + b"\n", parse=decoding(PLAIN, encoding))

    assert wrong is not None
    assert wrong.startswith(message)


@pytest.mark.parametrize(
    ("line", "expected"),
    [(b"k:-", (b"k", None)), (b"-:v", (None, b"v")), (b"-:-", (None, None)), (b"k:--", (b"k", b"--"))],
)
def test_the_null_marker_is_a_whole_key_or_value(line: bytes, expected: Pair) -> None:
    """A key or value that equals the marker is null and is not decoded; a longer text with the marker is text."""
    split = line_parser(None, None, ":")

    assert with_nulls(split, "-")(line) == expected
    assert with_nulls(split, None)(line) == split(line)
    assert decoding(with_nulls(split, "-"), Encoding.JSON)(b"1:-") == (b"1", None)


def test_a_key_is_the_bytes_that_were_typed() -> None:
    """A key on the command line is used as bytes, even if it is not valid text."""
    assert line_parser("schlüssel", None, None)(b"v") == ("schlüssel".encode(), b"v")
    assert line_parser("\udcff", None, None)(b"v") == (b"\xff", b"v")


def test_json_that_nests_too_deeply_is_none() -> None:
    """JSON that is nested too deeply is refused, because a recursive parser could not read it."""
    with raises(FormatError, "JSON"):
        decoding(PLAIN, Encoding.JSON)(b"[" * 10**5 + b"]" * 10**5)
