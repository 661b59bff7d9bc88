"""The public names of the SDK change on purpose only."""

from __future__ import annotations

import pytest

import fairlead

# Adding a name is a decision; taking one away breaks somebody.
PUBLIC_NAMES = [
    "Acks",
    "Admin",
    "BatchDelivery",
    "BatchMetadata",
    "CommitMode",
    "Consumer",
    "ConsumerBatch",
    "Delivery",
    "FairleadError",
    "Membership",
    "OffsetAndTimestamp",
    "OffsetPolicy",
    "Producer",
    "Record",
    "RecordMetadata",
    "TopicPartition",
    "errors",
]


def test_the_public_names_are_the_known_ones() -> None:
    """`fairlead.__all__` is the list above, sorted."""
    assert sorted(fairlead.__all__) == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_can_be_reached(name: str) -> None:
    """A listed name exists on the package."""
    assert getattr(fairlead, name) is not None
