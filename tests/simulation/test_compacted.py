"""Worlds of a compacted partition: no world breaks an invariant, and each dropped rule is found in a recorded world."""

from __future__ import annotations

from collections import Counter

import pytest

from compacted.judge import (
    DeletesReachReaders,
    NewestOfEachKeyStays,
    NoDeletedKeyBack,
    OffsetsCovered,
    ReplicasAgreeOnNewest,
)
from compacted.switches import SWITCHES
from compacted.world import run
from figures import record
from simulator.judge import Liveness, Violation

FOUND: dict[str, tuple[int, type[Violation], bool]] = {
    "copy-again": (3, NoDeletedKeyBack, False),
    "least-removed": (19, NoDeletedKeyBack, False),
    "end-after-cut": (87, NoDeletedKeyBack, False),
    "note-removed": (3, NoDeletedKeyBack, False),
    "take-removed": (1, Liveness, False),
    "horizon": (72, DeletesReachReaders, False),
    "epochs-apart": (0, OffsetsCovered, False),
    "append-times-apart": (2, NewestOfEachKeyStays, False),
    "hash-of-key": (6, NoDeletedKeyBack, False),
    "cut-to-merged": (0, Liveness, False),
    "synced-segment": (0, OffsetsCovered, False),
    "synced-names": (31, OffsetsCovered, False),
    "whole-segment": (0, OffsetsCovered, False),
    "aborted-records": (3, NewestOfEachKeyStays, True),
    "digest-without-deletes": (1, ReplicasAgreeOnNewest, False),
}
"""For each dropped rule, the seed of a world without the rule, the violated invariant, and whether the world
has aborted transactions."""
MUST_HAPPEN = (
    "rounds",
    "cut rounds",
    "tombstones went",
    "copied again",
    "lowered",
    "cut to a merged batch",
    "readers",
    "aborted",
    "leaders",
)


@pytest.mark.parametrize(
    "worlds", [10, pytest.param(1000, marks=[pytest.mark.scenario, pytest.mark.timeout(1800)])]
)
def test_no_world_of_a_compacted_partition_breaks_an_invariant(worlds: int) -> None:
    """Replicas that clean, lose power, are away, are replaced or lead keep the newest record of each key."""
    verdicts = [run(seed, has_transactions=seed % 2 == 1) for seed in range(worlds)]
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        counts.update(verdict.counts)

    record("worlds", {"seeds": [0, worlds - 1], **dict(sorted(counts.items()))})

    assert [f"{each.seed}: {each.violation!r}" for each in verdicts if each.violation is not None] == []
    assert [name for name in MUST_HAPPEN if not counts[name]] == []


def test_every_rule_of_cleaning_has_its_world() -> None:
    """Each switch has a recorded seed."""
    assert FOUND.keys() == SWITCHES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_a_dropped_rule_of_cleaning_is_found(name: str) -> None:
    """The recorded world violates its invariant without the rule."""
    seed, invariant, has_transactions = FOUND[name]
    with SWITCHES[name].drop():
        without = run(seed, has_transactions=has_transactions)
    record(f"without {name}", {"seed": seed, "violation": type(without.violation).__name__})

    assert type(without.violation) is invariant
