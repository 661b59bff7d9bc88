"""Ranges of producer ids."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.links.producer_ranges import first_producer_id
from fairlead_broker.producers.state import RANGED_IDS_FROM


@given(st.uuids(version=4))
def test_a_range_is_inside_the_ids_and_beside_those_of_others(cluster_id: UUID) -> None:
    """A range begins at a multiple of 2^32, ends below 2^63, and is always the same for a cluster."""
    first = first_producer_id(str(cluster_id))

    assert first % RANGED_IDS_FROM == 0
    assert 0 < first <= (1 << 63) - RANGED_IDS_FROM
    assert first == first_producer_id(str(cluster_id))


def test_ranges_differ() -> None:
    """A thousand clusters have a thousand different ranges."""
    assert len({first_producer_id(str(number)) for number in range(1000)}) == 1000
