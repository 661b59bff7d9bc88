"""Definitions of problems, from which the catalogue is built."""

from __future__ import annotations

import pytest

from fairlead_api.problems.definitions import ProblemDefinition, ProblemKind, SideEffect


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        (ProblemKind.RETRY, True),
        (ProblemKind.REFRESH, True),
        (ProblemKind.FIX, False),
        (ProblemKind.FENCED, False),
        (ProblemKind.DATA_LOSS, False),
        (ProblemKind.BUG, False),
    ],
)
def test_retryable_follows_from_the_kind(kind: ProblemKind, retryable: bool) -> None:
    """A problem is retryable only if its kind is retry or refresh."""
    definition = ProblemDefinition("some_code", 400, "Title", kind, "What happened.", "What to do.")

    assert definition.retryable is retryable
    assert definition.side_effect is SideEffect.NONE


def test_the_type_is_the_page_that_every_broker_serves() -> None:
    """The RFC 9457 type of a problem is a relative address under /problems, which every broker serves."""
    definition = ProblemDefinition(
        "some_code", 400, "Title", ProblemKind.FIX, "What happened.", "What to do."
    )

    assert definition.type_uri == "/problems/some_code"
