"""Gaps of mirrors: which offsets they contain, and when they end."""

from __future__ import annotations

from fairlead_api.identifiers import Offset
from fairlead_broker.links.gaps import is_open, widened
from fairlead_broker.registry.records import MirrorGap


def gap(first: int, end: int, skipped: int, truncated: int, acknowledgements: int = 2) -> MirrorGap:
    """Return a gap that began after two acknowledgements."""
    return MirrorGap(
        first_offset=Offset(first),
        end_offset=Offset(end),
        skipped=skipped,
        truncated=truncated,
        acknowledgements=acknowledgements,
    )


def test_a_gap_has_every_loss_since_the_last_acknowledgement() -> None:
    """Further losses widen an open gap, and a loss after an acknowledgement begins a new gap."""
    begun = widened(None, Offset(5), Offset(8), skipped=True, after=2)
    wider = widened(begun, Offset(3), Offset(5), skipped=False, after=2)
    farther = widened(wider, Offset(9), Offset(20), skipped=True, after=2)

    assert begun == gap(5, 8, 3, 0)
    assert wider == gap(3, 8, 3, 2)
    assert farther == gap(3, 20, 14, 2)
    assert widened(farther, Offset(6), Offset(7), skipped=False, after=3) == gap(6, 7, 0, 1, 3)


def test_an_interrupted_loss_is_counted_once() -> None:
    """A leader that repeats the loss that an earlier leader has written does not change the gap."""
    begun = gap(5, 8, 3, 0)

    assert widened(begun, Offset(5), Offset(8), skipped=True, after=2) is begun


def test_an_acknowledgement_closes_a_gap() -> None:
    """A gap is open until the link has more acknowledgements than at the gap's begin."""
    assert is_open(gap(5, 8, 3, 0), 2)
    assert not is_open(gap(5, 8, 3, 0), 3)
    assert not is_open(None, 0)
