"""Arithmetic of sequences, which are numbers modulo 2^31."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.producers.sequences import SEQUENCE_MAX, advanced, is_ahead, record_count

sequences = st.integers(0, SEQUENCE_MAX)


@given(sequences, st.integers(1, 2**31 - 1))
def test_a_batch_has_the_records_between_its_sequences(first: int, count: int) -> None:
    """The first and last sequence determine the number of records, even across the wraparound."""
    assert record_count(first, advanced(first, count - 1)) == count


@given(sequences, st.integers(1, 2**30 - 1))
def test_what_comes_later_is_ahead_and_never_the_other_way_round(expected: int, distance: int) -> None:
    """Of two sequences less than half the sequence space apart, exactly one is ahead."""
    later = advanced(expected, distance)

    assert is_ahead(later, expected)
    assert not is_ahead(expected, later)


@pytest.mark.parametrize(
    ("sequence", "records", "following"), [(0, 1, 1), (SEQUENCE_MAX, 1, 0), (SEQUENCE_MAX, 5, 4)]
)
def test_sequences_wrap_to_zero(sequence: int, records: int, following: int) -> None:
    """Sequence 2^31 - 1 is followed by sequence 0."""
    assert advanced(sequence, records) == following


def test_the_expected_sequence_is_not_ahead() -> None:
    """A batch with the expected sequence does not wait, because this sequence is not ahead."""
    assert not is_ahead(5, 5)
