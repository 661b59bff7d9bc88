"""Media types and header names."""

from __future__ import annotations

import pytest

from fairlead_api.bodies.media_types import FRAMES, FRAMES_ESSENCE, FRAMES_VERSION, Header, essence


@pytest.mark.parametrize(
    ("media_type", "expected"),
    [
        ("application/json", "application/json"),
        ("Text/Plain; charset=utf-8", "text/plain"),
        (FRAMES, FRAMES_ESSENCE),
        (" application/json ;q=1", "application/json"),
        ("", ""),
    ],
)
def test_the_essence_of_a_media_type_has_no_parameters(media_type: str, expected: str) -> None:
    """The essence of a media type is in lower case, without parameters and spaces."""
    assert essence(media_type) == expected


def test_frames_name_their_version() -> None:
    """The media type of frames contains the version as a parameter."""
    assert f"{FRAMES_ESSENCE};v={FRAMES_VERSION}" == FRAMES


def test_our_headers_have_our_prefix() -> None:
    """Header names have the prefix `Fairlead-`, except for two names defined elsewhere, and are unique."""
    names = [value for name, value in vars(Header).items() if name.isupper()]

    assert [name for name in names if not name.startswith("Fairlead-")] == [
        "Idempotency-Key",
        "Last-Event-ID",
    ]
    assert len({name.lower() for name in names}) == len(names)
