"""Short test of `many_topics.py` with a few topics; `make prove` runs it with thousands of topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from many_topics import run

TOPICS = 40


@pytest.mark.slow
async def test_topics_are_deleted_after_a_kill_while_others_are_created(tmp_path: Path) -> None:
    """A killed broker with many topics serves right after its start, and deletes all of them without a warning."""
    report = await run(tmp_path / "data", TOPICS)

    assert report["faults"] == []
    assert report["answers"]["DELETE 204"] >= TOPICS - 8, (
        "deletions are repeated only if a kill lost their answers"
    )
    assert len(report["start_seconds"]) == 3
    assert report["created_meanwhile"] > 0
