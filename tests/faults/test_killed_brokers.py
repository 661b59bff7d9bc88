"""Short test of `killed_brokers.py`; `make prove` makes a hundred kills over a log of more than a GiB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from history_checker import check
from killed_brokers import START_SECONDS_MAX, run

KILLS = 3
BALLAST_BYTES = 64 << 20


@pytest.mark.serial
@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_repeated_or_reordered_by_kills(tmp_path: Path) -> None:
    """A broker killed under load is ready again within two seconds, with every acknowledged record stored once."""
    report, history = await run(tmp_path / "data", KILLS, seed=7, ballast_bytes=BALLAST_BYTES)

    assert (report["verdict"], report["anomalies"]) == ("valid", {})
    assert report["kills"] == KILLS
    assert report["unanswered_requests"] >= KILLS, "the kills met no load"
    # The bound applies to a machine without other load, on which `make prove` checks it.
    starts = report["start_seconds"]
    assert starts["median"] <= max(START_SECONDS_MAX, 2 * starts["without_a_log"])
    # A history whose log lost its last record is invalid.
    answers = {event["id"]: event for event in history if event.get("type") == "ok" and event["op"] == "send"}
    last = max(answers)
    told = [answers[last]["offset"], f"{answers[last]['process']}:{last}.0"]
    assert check([without(event, told) for event in history]).verdict == "invalid"


def without(event: dict[str, Any], record: list[object]) -> dict[str, Any]:
    """Return an event without a record."""
    return (
        {**event, "records": [each for each in event["records"] if each != record]}
        if "records" in event
        else event
    )
