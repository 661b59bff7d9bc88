"""Eras of promotions: their leader epochs, and the comparison of two histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.links.eras import (
    ERA_EPOCHS,
    ERA_MAX,
    Kinship,
    era_start,
    first_of_next_era,
    kinship,
    parting,
)
from fairlead_broker.registry.records import Era

EPOCHS = st.integers(0, (1 << 31) - 1).map(LeaderEpoch)


@given(st.lists(EPOCHS, min_size=1, max_size=4))
def test_the_next_era_is_above_every_known_epoch(epochs: list[LeaderEpoch]) -> None:
    """The first epoch of the next era begins an era and is above every known epoch; no era follows the last one."""
    found = first_of_next_era(*epochs)

    if max(epochs) >= ERA_MAX * ERA_EPOCHS:
        assert found is None
    else:
        assert found is not None
        assert found > max(epochs)
        assert found % ERA_EPOCHS == 0
        assert found - max(epochs) <= ERA_EPOCHS


def test_two_histories_are_compared_by_their_promotions() -> None:
    """A history that begins with all promotions of another continues it; if promotions differ, histories diverge."""
    first, second, other = ("east", 1), ("west", 2), ("north", 2)

    assert kinship((), ()) is Kinship.SAME_OR_OLDER
    assert kinship((first,), (first, second)) is Kinship.SAME_OR_OLDER
    assert kinship((first, second), (first,)) is Kinship.NEWER
    assert kinship((first, second), (first, other)) is Kinship.PARTED


def test_the_parting_of_two_histories_is_their_first_promotions_that_differ() -> None:
    """A longer history parts from the other with one promotion, and two promotions of the same topic with both."""
    first, second, third = (
        Era(epoch=LeaderEpoch(number * ERA_EPOCHS), cluster_id=cluster)
        for number, cluster in ((1, "east"), (2, "west"), (2, "north"))
    )

    assert parting((first,), (first,)) == ()
    assert parting((first, second), (first,)) == (second,)
    assert parting((first, second), (first, third)) == (second, third)


def test_an_era_begins_with_its_first_leader_epoch_in_the_log() -> None:
    """The first era begins at offset 0, and an era without leader epochs in the log begins at the end of the log."""
    starts = [
        (LeaderEpoch(epoch), Offset(offset))
        for epoch, offset in ((3, 0), (ERA_EPOCHS, 10), (ERA_EPOCHS + 1, 20))
    ]
    epochs = (4, ERA_EPOCHS, ERA_EPOCHS + 2, 2 * ERA_EPOCHS)

    assert [era_start(LeaderEpoch(epoch), starts, Offset(30)) for epoch in epochs] == [0, 10, 10, 30]
