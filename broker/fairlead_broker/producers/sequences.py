"""Arithmetic of sequence numbers, which count a producer's records in one partition and wrap from 2^31 - 1 to 0."""

from __future__ import annotations

from typing import Final

from fairlead_api.identifiers import Sequence

SEQUENCE_MAX: Final = 2**31 - 1
FIRST: Final = Sequence(0)
"""First sequence number of a producer in each partition and producer epoch."""
UNNUMBERED: Final = Sequence(-1)
"""Placeholder for the first sequence number of a batch that gets the next sequence number when it is ordered."""
_AHEAD_MAX: Final = 2**30


def advanced(sequence: int, records: int) -> Sequence:
    """Return the sequence number advanced by this number of records."""
    return Sequence((sequence + records) & SEQUENCE_MAX)


def record_count(first: int, last: int) -> int:
    """Return the number of records in a batch with these first and last sequence numbers."""
    return ((last - first) & SEQUENCE_MAX) + 1


def is_ahead(sequence: int, expected: int) -> bool:
    """Return whether a sequence number is after the expected number, by less than half of the number range."""
    return 0 < ((sequence - expected) & SEQUENCE_MAX) < _AHEAD_MAX
