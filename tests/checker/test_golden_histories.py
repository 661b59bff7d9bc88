"""Golden histories: each anomaly in its smallest form, and valid histories that resemble it.

Files of `golden/` are named `<anomaly>-<verdict>[-<what is special>].jsonl`; `plain` stands for no anomaly.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from anomalies import FORBIDDEN, Anomaly, Settings
from history_checker import check, read_events

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.jsonl"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_each_history_gets_its_verdict_and_nothing_else_is_found(path: Path) -> None:
    """The checker reaches the verdict that a golden history's file name states, and finds no other anomaly."""
    subject, verdict = path.stem.split("-")[:2]

    report = check(read_events(path))

    expected = {subject} if verdict == "invalid" else set()
    assert {name.split()[0] for name in report.anomalies} == expected, report.anomalies
    assert report.verdict == verdict


def test_every_anomaly_has_its_histories() -> None:
    """Every anomaly has a valid history, and an invalid history if any settings forbid the anomaly."""
    known = {tuple(path.stem.split("-")[:2]) for path in GOLDEN}

    for anomaly in Anomaly:
        number = anomaly.split()[0]
        assert (number, "valid") in known, f"no right history is about {anomaly}"
        if FORBIDDEN[anomaly](Settings(delivery="exactly_once")):
            assert (number, "invalid") in known, f"no wrong history is about {anomaly}"


def test_what_is_allowed_is_counted() -> None:
    """Anomalies that the settings allow are counted in the report."""
    folder = GOLDEN[0].parent

    assert check(read_events(folder / "A11-valid-others-inside-a-transaction.jsonl")).allowed == {
        Anomaly.INTERNAL_SEND_SKIP: 1
    }
    assert check(read_events(folder / "A4-valid-at-least-once.jsonl")).allowed == {Anomaly.DUPLICATE: 1}
    for name, anomaly in (
        ("A12-valid-other-order-in-each-partition", Anomaly.WRITE_CYCLE),
        ("A12-valid-reads-a-transaction-that-wrote-after-it", Anomaly.WRITE_CYCLE),
        ("A18-valid-one-partition-before-and-one-after", Anomaly.READ_SKEW),
        ("A19-valid-each-reads-before-the-other-writes", Anomaly.ANTI_DEPENDENCY),
    ):
        assert check(read_events(folder / f"{name}.jsonl")).allowed == {anomaly: 1}


def test_lag_is_reported() -> None:
    """The lag of a reader is reported, even when no setting bounds it."""
    path = GOLDEN[0].parent / "A16-valid-before-the-heal.jsonl"

    assert check(read_events(path)).lag_seconds_max == 8.0
