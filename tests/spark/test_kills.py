"""Tests of `killed_queries.py` with few kills; `make prove PROVE=spark-kills` uses fifty kills."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from killed_queries import run
from query_judge import judge_places

KILLS = ("worker", "driver", "worker")
TIMEOUT_SECONDS = 600
"""Time limit for a run, which takes fifteen seconds on idle cores, mostly for two starts of a JVM."""


@pytest.mark.scenario
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_killed_queries_lose_and_repeat_nothing_against_their_checkpoint(tmp_path: Path) -> None:
    """After kills, files and the Delta table contain every record once, and the topic every record at least once."""
    report = run(tmp_path, KILLS, seed=7)

    assert report.passed, report.as_json()
    assert report.kills.total() == len(KILLS)
    assert report.records == report.sinks["files"].records == report.sinks["lake"].records > 0
    assert report.sinks["files"].batches > 1


def test_the_judge_notices_what_is_lost_repeated_or_changed() -> None:
    """The judge reports each single anomaly as a violation of the guarantee that it concerns."""
    truth = {(0, 0): "a", (0, 1): "b"}
    whole = Counter({(0, 0, "a"): 1, (0, 1, "b"): 1})

    assert judge_places(whole, truth).is_exactly_once
    assert not judge_places(Counter({(0, 0, "a"): 1}), truth).is_at_least_once
    assert not judge_places(whole | Counter({(0, 1, "c"): 1}), truth).is_at_least_once
    twice = judge_places(whole + whole, truth)
    assert (twice.is_at_least_once, twice.is_exactly_once, twice.repeated) == (True, False, 2)
