"""Short test of `hand_overs.py`: `make prove PROVE=hand-overs` hands a topic over a hundred times."""

from __future__ import annotations

from pathlib import Path

import pytest

from hand_overs import prove

HAND_OVERS = 4


@pytest.mark.scenario
async def test_hand_overs_with_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """A topic that moves between two clusters, whose brokers are killed during hand-overs, has each record once."""
    report = await prove(tmp_path, HAND_OVERS, seed=1)

    assert report["problems"] == []
    assert report["hand_overs"] == HAND_OVERS
    assert report["stored_records"] == report["acknowledged_records"] > 0
    assert sum(report["kills"].values()) == HAND_OVERS // 2
