"""The checker finds every mutation of a valid history."""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from history_checker import check, read_events
from mutations import MUTATIONS, Mutation
from valid_histories import valid_history

SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.integers(0, 120))
def test_a_log_that_is_right_makes_valid_histories(seed: int, steps: int) -> None:
    """A history of a correct log with overlapping requests, lost answers, groups and readers has no anomaly."""
    report = check(valid_history(seed, steps))

    assert (report.verdict, report.anomalies, report.undecided) == ("valid", {}, [])


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
@settings(max_examples=30)
@given(seed=SEEDS, steps=st.integers(10, 80))
def test_one_mutation_is_found(mutation: Mutation, seed: int, steps: int) -> None:
    """A history with one mutation is invalid, and the mutation's anomaly is reported."""
    harmed = mutation(valid_history(seed, steps), random.Random(seed))
    assume(harmed is not None)
    assert harmed is not None

    report = check(harmed)

    assert report.verdict == "invalid"
    assert MUTATIONS[mutation] & set(report.anomalies)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_one_mutation_among_thousands_is_found(mutation: Mutation) -> None:
    """A history of thousands of events with one mutation is invalid."""
    harmed = mutation(valid_history(1, 3000), random.Random(1))

    assert harmed is not None, "a long history has something of everything"
    assert MUTATIONS[mutation] & set(check(harmed).anomalies)


def test_an_end_cut_off_is_unknown() -> None:
    """A history that ends before its readers have read everything is unknown, because unread records may exist."""
    events = valid_history(1, 200)

    assert check(events[:-1]).verdict == "unknown"
    assert check([each for each in events if not each.get("final")]).verdict != "valid"


@pytest.mark.scenario
@pytest.mark.serial
@pytest.mark.slow
def test_a_million_operations_take_seconds(tmp_path: Path) -> None:
    """A history of a million operations is read and judged in half a minute of processor time."""
    events = valid_history(3, 560_000)
    path = tmp_path / "history.jsonl"
    path.write_bytes(msgspec.json.Encoder().encode_lines(events))
    operations = sum(event.get("type") in {"invoke", "ok"} for event in events) // 2
    begun = time.process_time()

    report = check(read_events(path))

    assert report.verdict == "valid"
    assert operations >= 600_000
    assert time.process_time() - begun < 30
