"""A small fixed set of worlds of each suite violates no invariant, and each run is reproducible.

`test_many_worlds.py` runs a large set of worlds, and `make sim` runs other worlds for a given time.
"""

from __future__ import annotations

from collections import Counter

import pytest

from classic.plan import FAULTS as CLASSIC_FAULTS
from groups.plan import Fault as GroupFault
from partitions.plan import STORMS, Drill, Fault
from partitions.quorum_drills import QuorumDrill
from partitions.quorum_worlds import LEFT_OUT
from simulator.search import CLASSIC, GROUPS, PARTITIONS, QUORUMS, TRANSACTIONS, Suite
from transactional.plan import Fault as TransactionFault

WORLDS = 200
REPEATED = range(0, 200, 10)
MUST_HAPPEN = {
    PARTITIONS: (
        *(f"fault {fault.value}" for fault in Fault),
        *(f"drill {drill.value}" for drill in Drill),
        "torn tails",
        "clock jumps",
    ),
    QUORUMS: (
        *(f"fault {fault.value}" for fault in STORMS if fault not in LEFT_OUT),
        *(f"drill {drill.value}" for drill in QuorumDrill),
        "torn tails",
        "clock jumps",
    ),
    GROUPS: tuple(f"fault {fault.value}" for fault in GroupFault),
    CLASSIC: tuple(f"fault {fault.value}" for fault in CLASSIC_FAULTS),
    TRANSACTIONS: tuple(f"fault {fault.value}" for fault in TransactionFault),
}
MUST_HAPPEN_OFTEN = {
    PARTITIONS: (
        "leaders", "truncations", "cells lost", "isr shrinks", "isr expands", "acknowledged", "read",
    ),
    QUORUMS: ("leaders", "truncations", "cells lost", "acknowledged", "read"),
    GROUPS: ("take-overs", "changes", "expired", "given up", "committed", "static returns"),
    CLASSIC: (
        "take-overs", "changes", "heartbeats", "committed", "refused REBALANCE_IN_PROGRESS",
        "refused UNKNOWN_MEMBER_ID", "refused FENCED_INSTANCE_ID",
    ),
    TRANSACTIONS: (
        "leaders", "commits client", "commits with batches", "repeats of a commit", "aborts client",
        "aborts fenced", "aborts timeout", "read",
    ),
}  # fmt: skip
OFTEN = 20


@pytest.mark.slow
@pytest.mark.parametrize("play", MUST_HAPPEN, ids=str)
def test_no_world_breaks_an_invariant(play: Suite) -> None:
    """No world violates an invariant, every world comes to rest, and each fault and each effect of the rules occurs."""
    verdicts = [play.run(seed) for seed in range(WORLDS)]
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        counts.update(verdict.counts)

    broken = [f"{each.seed}: {each.violation!r}" for each in verdicts if each.violation is not None]
    assert not broken, f"see each with `make sim SIM='{play.option}--seed N --trace'`: {broken}"
    assert [name for name in MUST_HAPPEN[play] if not counts[name]] == []
    assert {name: counts[name] for name in MUST_HAPPEN_OFTEN[play] if counts[name] < OFTEN} == {}


@pytest.mark.parametrize("play", MUST_HAPPEN, ids=str)
def test_a_seed_is_a_run(play: Suite) -> None:
    """A seed determines its run, including the state of the random generator, with and without a trace."""
    first = [play.run(seed).digest for seed in REPEATED]
    second = [play.run(seed, traced=True).digest for seed in REPEATED]

    assert first == second
    assert len(set(first)) == len(first)


@pytest.mark.parametrize(
    ("play", "steps"),
    [
        (PARTITIONS, ("leads:", "controller writes:")),
        (QUORUMS, ("leads:", "controller writes:", "leader writes:")),
        (GROUPS, ("claims:", "assigned:")),
        (CLASSIC, ("claims:", "assigned:")),
        (TRANSACTIONS, ("leads:", "fault:")),
    ],
    ids=str,
)
def test_a_trace_names_its_steps(play: Suite, steps: tuple[str, ...]) -> None:
    """The trace of a run contains its leaders, writes, claims and assignments."""
    trace = "\n".join(play.run(3, traced=True).trace)

    assert [step for step in steps if step not in trace] == []
