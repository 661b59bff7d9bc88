"""Pages of lists, with opaque cursors."""

import pytest

from fairlead_api.problems import ProblemError
from fairlead_broker.server.http.paging import page


def test_pages_hold_everything_once() -> None:
    """The cursors lead to every item once and in order, and the last page has no cursor."""
    names = [f"topic-{number:03d}" for number in range(25)]
    seen: list[str] = []
    after, sizes = None, []
    while True:
        chosen, after = page(names, str, limit=10, after=after)
        seen += chosen
        sizes.append(len(chosen))
        if after is None:
            break

    assert seen == names
    assert sizes == [10, 10, 5]


def test_names_that_come_and_go() -> None:
    """If a name before the cursor is deleted, no other name is skipped; a new name after the cursor is listed."""
    _, after = page(["a", "b", "c", "d"], str, limit=2, after=None)
    chosen, following = page(["a", "bb", "c", "d"], str, limit=2, after=after)

    assert chosen == ["bb", "c"]
    assert following is not None


def test_exact_end_has_no_cursor() -> None:
    """A full last page has no cursor."""
    assert page(["a", "b"], str, limit=2, after=None) == (["a", "b"], None)
    assert page([], str, limit=2, after=None) == ([], None)


@pytest.mark.parametrize("cursor", ["x", "not a cursor", "AAAA", "ü", "", "Mf8"])
def test_other_texts_are_no_cursors(cursor: str) -> None:
    """A text that is not a cursor is refused, and the problem names the parameter."""
    with pytest.raises(ProblemError) as refused:
        page(["a"], str, limit=1, after=cursor)

    assert refused.value.code == "malformed_request"
    assert refused.value.data["parameter"] == "after"
