"""The error classes of the SDK correspond to the problem catalogue."""

from __future__ import annotations

import pickle

import pytest

from fairlead import errors
from fairlead.errors import (
    BugError,
    ClusterError,
    DataLossError,
    DeliveryTimeoutError,
    FencedError,
    FixError,
    RefreshError,
    RetryError,
    UnreachableError,
    error_of,
)
from fairlead_api.problems import CATALOGUE, ProblemError, ProblemKind, SideEffect
from refusals import missing

KIND_CLASSES = {
    ProblemKind.RETRY: RetryError,
    ProblemKind.REFRESH: RefreshError,
    ProblemKind.FIX: FixError,
    ProblemKind.FENCED: FencedError,
    ProblemKind.DATA_LOSS: DataLossError,
    ProblemKind.BUG: BugError,
}


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_code_of_the_catalogue_has_its_public_class(code: str) -> None:
    """Each problem code has its own class, a subclass of its kind's class, which `fairlead.errors` exports."""
    error = error_of(ProblemError(code, "detail"), subject="test")

    assert type(error).code_of_class == code
    assert isinstance(error, KIND_CLASSES[CATALOGUE[code].kind])
    assert getattr(errors, type(error).__name__) is type(error)


def test_no_class_is_left_over() -> None:
    """Error classes exist only for codes of the catalogue."""
    assert ClusterError.by_code.keys() == CATALOGUE.keys()


def test_an_unknown_code_is_raised_by_its_kind() -> None:
    """An unknown code from a newer server is raised as an error of the class for its kind."""
    document = {"code": "too_sunny", "status": 503, "kind": "retry", "detail": "wait for clouds"}
    error = error_of(ProblemError.from_document(document), subject="produce", broker="http://b:1")

    assert type(error) is RetryError
    assert error.code == "too_sunny"
    assert error.retryable


def test_the_message_names_subject_numbers_place_and_next_step() -> None:
    """An error's message contains the subject, detail, code, broker and next step."""
    problem = ProblemError("topic_not_found", "topic flights does not exist")
    error = error_of(problem, subject="produce to flights-3", broker="http://b:9520")

    assert missing(error, "flights-3", "topic_not_found", "http://b:9520") == []
    assert CATALOGUE["topic_not_found"].next_step in str(error)


def test_cluster_errors_travel_between_processes() -> None:
    """Cluster errors can be pickled, as is necessary in Spark's workers and process pools."""
    error = error_of(ProblemError("not_leader", "ask broker 2", data={"leader": 2}), subject="fetch")
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.data == {"leader": 2}


def test_errors_without_an_answer_travel_between_processes() -> None:
    """Errors without a broker's answer can be pickled, because otherwise a process pool would break or hang."""
    unreachable = UnreachableError("metadata", {"http://a:1": "refused"}, sent=True)
    late = DeliveryTimeoutError(
        "produce to t-0", record_count=7, waited_seconds=120.0, attempts=3, side_effect=SideEffect.MAYBE
    )
    late.__cause__ = unreachable
    for error in (unreachable, late):
        copy = pickle.loads(pickle.dumps(error))

        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert copy.side_effect is SideEffect.MAYBE


def test_an_unreachable_cluster_names_every_address() -> None:
    """The error for an unreachable cluster lists each address and cause, and whether a request may have arrived."""
    error = UnreachableError("metadata", {"http://a:1": "refused", "http://b:2": "timed out"}, sent=True)

    assert missing(error, "http://a:1", "refused", "http://b:2") == []
    assert error.side_effect is SideEffect.MAYBE


def test_a_delivery_timeout_has_counts_and_the_last_refusal() -> None:
    """The error for a delivery timeout contains record count, time, attempts, last refusal and side effects."""
    error = DeliveryTimeoutError(
        "produce to t-0", record_count=7, waited_seconds=120.0, attempts=3, side_effect=SideEffect.MAYBE
    )
    error.__cause__ = error_of(ProblemError("ack_timeout", "waited 30 s"), subject="produce")

    assert missing(error, 7, "120.000", 3, 30) == []
