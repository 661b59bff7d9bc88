"""A problem is sent as a document and read back as an exception."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.problems import CATALOGUE, ProblemError, ProblemKind, SideEffect
from refusals import raises

if TYPE_CHECKING:
    from fairlead_api.problems import JSON

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_document_has_the_standard_members_and_the_data_beside_them() -> None:
    """A problem's document contains the standard members, and the data as further members of the same object."""
    problem = ProblemError("not_leader", "broker 2 leads flights-3", data={"address": "http://b2:9520"})

    assert problem.to_document() == {
        "type": "/problems/not_leader",
        "title": "Another broker leads the partition",
        "status": 421,
        "detail": "broker 2 leads flights-3",
        "code": "not_leader",
        "kind": "refresh",
        "retryable": True,
        "side_effect": "none",
        "address": "http://b2:9520",
    }
    assert str(problem) == "not_leader: broker 2 leads flights-3"


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_code_comes_back_from_its_document(code: str) -> None:
    """A problem of any code is read back unchanged from its document, its JSON text and its pickle."""
    problem = ProblemError(
        code, "it happened", retry_after_seconds=1.5, side_effect=SideEffect.MAYBE, data={"epochs": [1, 2]}
    )
    document = problem.to_document()
    returned = ProblemError.from_document(msgspec.json.decode(msgspec.json.encode(document)))
    unpickled = pickle.loads(pickle.dumps(problem))

    for copy in (returned, unpickled):
        assert copy.to_document() == document
        assert copy.definition is problem.definition
        assert copy.args == problem.args
        assert copy.retry_after_seconds == 1.5


def test_the_occurrence_may_know_its_side_effect_better_than_the_catalogue() -> None:
    """A problem may have a different side effect from its code: a storage failure after the append has `maybe`."""
    before = ProblemError("storage_failed", "the disk is gone")
    after = ProblemError("storage_failed", "the disk is gone", side_effect=SideEffect.MAYBE)

    assert before.side_effect is SideEffect.NONE
    assert after.side_effect is SideEffect.MAYBE
    assert ProblemError.from_document(after.to_document()).side_effect is SideEffect.MAYBE


def test_an_unknown_code_cannot_be_raised() -> None:
    """A code that is not in the catalogue cannot be raised."""
    with pytest.raises(KeyError):
        ProblemError("no_such_code", "")


@pytest.mark.parametrize("name", ["type", "status", "code", "side_effect", "retry_after_seconds"])
def test_data_cannot_hide_a_standard_member(name: str) -> None:
    """Data with the name of a standard member raises an error immediately."""
    with raises(ValueError, name):
        ProblemError("internal", "", data={name: 1})


def test_a_code_of_a_newer_server_survives() -> None:
    """A problem with an unknown code keeps the code, status, kind, title, side effect and data of its document."""
    document: dict[str, JSON] = {
        "type": "/problems/quota_spent",
        "title": "The quota is spent",
        "status": 429,
        "detail": "team a wrote 5 GB",
        "code": "quota_spent",
        "kind": "retry",
        "retryable": True,
        "side_effect": "none",
        "team": "a",
    }
    problem = ProblemError.from_document(document)

    assert (problem.code, problem.status, problem.kind, problem.retryable) == (
        "quota_spent",
        429,
        ProblemKind.RETRY,
        True,
    )
    assert problem.data == {"team": "a"}
    assert problem.to_document() == document


@pytest.mark.parametrize(
    ("document", "status", "kind", "side_effect"),
    [
        ({"code": "new", "status": 503}, 503, ProblemKind.RETRY, SideEffect.MAYBE),
        ({"code": "new", "status": 500}, 500, ProblemKind.BUG, SideEffect.MAYBE),
        ({"code": "new", "status": 409}, 409, ProblemKind.FIX, SideEffect.NONE),
        ({"code": "new", "status": 409, "retryable": True}, 409, ProblemKind.RETRY, SideEffect.NONE),
        ({"code": "new", "status": 409, "kind": "pray"}, 409, ProblemKind.FIX, SideEffect.NONE),
        ({"code": "new", "status": "odd"}, 500, ProblemKind.BUG, SideEffect.MAYBE),
        ({"code": "new", "status": True}, 500, ProblemKind.BUG, SideEffect.MAYBE),
        ({"status": 502}, 502, ProblemKind.BUG, SideEffect.MAYBE),
        ({}, 500, ProblemKind.BUG, SideEffect.MAYBE),
        ({"code": "disk_full", "side_effect": 7}, 507, ProblemKind.RETRY, SideEffect.MAYBE),
    ],
)
def test_an_incomplete_document_is_read_carefully(
    document: dict[str, JSON], status: int, kind: ProblemKind, side_effect: SideEffect
) -> None:
    """A problem from an incomplete document gets defaults from its status.

    The side effect of a server failure is `maybe` by default.
    """
    problem = ProblemError.from_document(document)

    assert (problem.status, problem.kind, problem.side_effect) == (status, kind, side_effect)


@given(
    document=st.dictionaries(
        st.sampled_from(["code", "status", "kind", "detail", "title"]) | st.text(), JSON_VALUES
    )
)
def test_no_json_object_is_too_strange_to_become_a_problem(document: dict[str, JSON]) -> None:
    """A JSON object of any content becomes a problem whose document is valid JSON."""
    problem = ProblemError.from_document(document)

    assert msgspec.json.encode(problem.to_document())
