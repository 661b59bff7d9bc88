"""The error that Kafka's clients get for each problem."""

from __future__ import annotations

import pytest
from kafka.errors import for_code
from kio.schema.errors import ErrorCode

from fairlead_api.problems import CATALOGUE, ProblemError
from fairlead_broker.kafka.protocol.errors import ERRORS, FAMILY_ERRORS, Family, KafkaError, error_of


def test_every_problem_has_an_error() -> None:
    """The table has exactly the problems of the catalogue, and the entries of API families have no other problems."""
    assert ERRORS.keys() == CATALOGUE.keys()
    for errors in FAMILY_ERRORS.values():
        assert errors.keys() <= CATALOGUE.keys()


def test_the_errors_have_kafkas_numbers() -> None:
    """Names and numbers of errors equal those of Kafka's protocol, as another library defines them."""
    assert {error.name: error.value for error in KafkaError}.items() <= {
        code.name.upper(): code.value for code in ErrorCode
    }.items()


@pytest.mark.parametrize("code", sorted(code for code, kind in CATALOGUE.items() if kind.retryable))
def test_clients_of_records_retry_what_may_succeed(code: str) -> None:
    """A problem that may succeed when retried has an error that producers and consumers retry."""
    error = error_of(ProblemError(code, "detail"), Family.DATA)

    assert for_code(error.value).retriable
