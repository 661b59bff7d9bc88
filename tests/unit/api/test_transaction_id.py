"""Transaction ids as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import EPOCH_MAX, PRODUCER_ID_MAX, TransactionId, parse_transaction_id


@given(st.integers(0, PRODUCER_ID_MAX), st.integers(0, EPOCH_MAX))
def test_an_id_is_parsed_as_written(producer_id: int, epoch: int) -> None:
    """The text of a transaction id is parsed to the same id."""
    transaction = TransactionId(producer_id, epoch)  # type: ignore[arg-type]

    assert parse_transaction_id(str(transaction)) == transaction


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        "17.",
        ".4",
        "017.4",
        "17.04",
        "-1.4",
        "17.4 ",
        "1.2.3",
        f"{2**63}.0",
        f"1.{2**31}",
        "\uff11.0",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """A transaction id with a sign, leading zeros, non-ASCII digits or a number beyond the range is refused.

    The problem for an invalid transaction id names the query parameter.
    """
    with pytest.raises(ProblemError) as caught:
        parse_transaction_id(text)

    assert caught.value.code == "malformed_request"
    assert caught.value.data["parameter"] == "transaction"
