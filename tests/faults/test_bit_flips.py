"""A short run of `bit_flips.py`, and one over a log that does not tell what it finds, which must fail."""

from __future__ import annotations

import random

import pytest

from bit_flips import run
from fairlead_broker.log import SegmentScrub

TRIALS = 100


@pytest.mark.slow
def test_every_harm_is_told_and_no_wrong_record_is_served() -> None:
    """Whatever changes in the files of a log, readers get right records or none, and the broker knows which."""
    report = run(TRIALS, seed=random.SystemRandom().randrange(1 << 32))

    assert report["wrong"] is None, report
    assert report["trials"] == TRIALS
    assert report["harmed .log"] >= TRIALS // 20


def test_harm_that_nobody_tells_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the scrub finds the same run fails: it would see a log that hides its damage."""
    monkeypatch.setattr(SegmentScrub, "finish", lambda scrub: ())

    assert run(TRIALS, seed=1)["wrong"] is not None
