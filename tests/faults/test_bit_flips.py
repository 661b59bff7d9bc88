"""A short run of `bit_flips.py`, and a run that must fail, over a log that does not report its damage."""

from __future__ import annotations

import random

import pytest

from bit_flips import run
from fairlead_broker.log import SegmentScrub

TRIALS = 60


@pytest.mark.slow
def test_all_damage_is_reported_and_no_wrong_record_is_served() -> None:
    """A log with any change in its files returns stored records or none, and reports the damage."""
    report = run(TRIALS, seed=random.SystemRandom().randrange(1 << 32))

    assert report["wrong"] is None, report
    assert report["trials"] == TRIALS
    assert report["harmed .log"] >= TRIALS // 20


def test_unreported_damage_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run fails with a log whose scrub reports no damage, so the program notices hidden damage."""
    monkeypatch.setattr(SegmentScrub, "finish", lambda scrub: ())

    assert run(TRIALS, seed=1)["wrong"] is not None
