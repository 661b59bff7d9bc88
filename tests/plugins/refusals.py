"""Expected errors of tests: their type, their code, their data, and the names and numbers in their message.

Tests assert what programs may rely on, and a message may be worded differently at any time. A value that a message must
contain is given without the words around it; a value with a space would be a sentence, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from fairlead_api.problems import ProblemError

E = TypeVar("E", bound=BaseException)


def missing(error: BaseException | str, *named: object) -> list[str]:
    """Return the values that a message does not contain as whole words."""
    text = str(error)
    values = [str(value) for value in named]
    assert not [value for value in values if " " in value], "a test names values, not sentences"
    return [value for value in values if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is None]


@contextmanager
def raises(
    kind: type[E] | tuple[type[E], ...], *named: object, **attributes: object
) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of this type with these attributes, whose message contains the given names and numbers."""
    with pytest.raises(kind) as caught:
        yield caught
    assert {name: getattr(caught.value, name) for name in attributes} == attributes
    assert missing(caught.value, *named) == []


@contextmanager
def refuses(code: str, *named: object, **data: object) -> Iterator[pytest.ExceptionInfo[ProblemError]]:
    """Expect the problem with this code, these members in its data, and the given names and numbers in its detail."""
    with pytest.raises(ProblemError) as caught:
        yield caught
    assert (caught.value.code, {name: caught.value.data.get(name) for name in data}) == (code, data)
    assert missing(caught.value.detail, *named) == []
