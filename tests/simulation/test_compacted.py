"""Worlds of a compacted partition: no world breaks an invariant, and each dropped rule is found in a recorded world."""

from __future__ import annotations

from collections import Counter

import pytest

from cleaning_kit import KeyedBatches, Row, clean_log, committed, newest, roll
from compacted.judge import (
    DeletesReachReaders,
    NewestOfEachKeyStays,
    NoDeletedKeyBack,
    OffsetsCovered,
    ReplicasAgreeOnNewest,
)
from compacted.switches import SWITCHES
from compacted.world import RETENTION_US, World, run
from figures import record
from lying_disk import LyingDisk
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
    "synced-names": (175, OffsetsCovered, False),
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
    verdicts = [
        run(seed, has_transactions=seed % 2 == 1, copies_in_rounds=seed % 4 > 1) for seed in range(worlds)
    ]
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        counts.update(verdict.counts)

    record("worlds", {"seeds": [0, worlds - 1], **dict(sorted(counts.items()))})

    assert [f"{each.seed}: {each.violation!r}" for each in verdicts if each.violation is not None] == []
    assert [name for name in MUST_HAPPEN if not counts[name]] == []


def test_a_follower_remembers_the_tombstones_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica copied from a cleaned leader makes others copy again, even after it followed an uncleaned leader."""
    monkeypatch.setattr("compacted.world.REPLICAS", 4)
    world = World(0)
    cleaned, uncleaned, copied, away = range(4)

    def write(*rows: Row) -> None:
        """Append a batch to the leader's log, and let all live followers copy it."""
        log = world.replicas[world.leader].log
        batches = KeyedBatches(log, world.epoch, world.now_us)
        base = batches.append(rows)
        world.now_us = batches.time_us
        log.sync()
        world.history.records |= {each.offset: each for each in committed(log, base)}
        follow(uncleaned, copied, away)

    def follow(*numbers: int) -> None:
        """Let followers copy until they are complete."""
        for _ in range(8):
            for number in numbers:
                world.copy(number)
            world._advance()

    write((b"deleted", b"1"), (b"kept", b"1"))
    world.replicas[away].is_alive = False
    write((b"deleted", None))
    world._lead(cleaned)
    write((b"other", b"1"))
    write((b"other", None))
    log = world.replicas[cleaned].log
    roll(log)
    clean_log(log, world.now_us, world.replicas[cleaned].disk)
    world.now_us += 2 * RETENTION_US
    clean_log(log, world.now_us, world.replicas[cleaned].disk, removal_limit=log.end_offset)
    world.replicas[copied] = world._opened("copied", LyingDisk())
    world.isr = {cleaned, uncleaned}
    while world.replicas[copied].log.end_offset == 0:
        world.copy(copied)
    end = world.replicas[copied].log.end_offset
    world.replicas[cleaned].is_alive = False
    world._lead(uncleaned)
    follow(copied)
    lacks = world.replicas[copied].log.cleaning.lacks_below
    world.replicas[uncleaned].is_alive = False
    world._lead(copied)
    world._restart(away)
    follow(away)
    world.check()

    assert (log.cleaning.removed, end, lacks) == (5, 3, 3)
    assert world.isr >= {copied, away}
    assert newest(committed(world.replicas[away].log)).keys() == {b"kept"}


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
