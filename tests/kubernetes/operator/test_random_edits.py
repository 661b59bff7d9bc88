"""Random edits of a Cluster and its Topics, while operators are killed and the API server fails.

Seed and number of edits are FAIRLEAD_SEED and FAIRLEAD_EDITS, by default a few fixed edits; `make prove
PROVE=operator-edits` makes fifty edits, and more with `--share`. A failure names its seed and its edits.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from edit_stage import RESYNC_SECONDS, EditStage, edit_stage
from figures import keep_figures
from random_edits import World, some_edits
from wishes import below_minimum, differences

if TYPE_CHECKING:
    from pathlib import Path

    from kubernetes_under_test import Kubernetes
    from operator_process import Operators

FULL = "FAIRLEAD_EDITS" in os.environ
EDITS = int(os.environ.get("FAIRLEAD_EDITS", "6"))
SEED = int(os.environ.get("FAIRLEAD_SEED", "1"))
CONVERGE_SECONDS = float(os.environ.get("FAIRLEAD_CONVERGE_SECONDS", "60" if FULL else "110"))
"""Seconds to converge, doubled when other tests load the machine."""
BEGIN_SECONDS = 110.0
POLL_SECONDS = 0.5
IDLE_SECONDS = 120.0 if FULL else 1.5 * RESYNC_SECONDS
EDITS_AT_ONCE_MAX = 3


def converge(world: World, seconds: float) -> float:
    """Wait until the state is as requested, and check invariants in each pass; return the seconds."""
    began = time.monotonic()
    while wrong := differences(world):
        assert time.monotonic() - began < seconds, f"not as requested after {seconds} s: {wrong}"
        assert not (broken := world.stage.broken_operators()), broken
        below = [] if world.disturbed else below_minimum(world.stage.brokers)
        assert not below, f"below the replicas in sync that acks=all wants: {below}"
        world.stage.look_at_permits()
        world.stage.pause(POLL_SECONDS)
    world.stage.look_at_permits()
    return time.monotonic() - began


def a_round(world: World, count: int, told: list[Any]) -> float:
    """Make some edits under disturbances, and wait for convergence."""
    stage = world.stage
    stage.brokers.most_away = 0
    restarts, permits = stage.restarts(), set(stage.permits)
    edits = some_edits(world, count)
    entry: dict[str, Any] = {"edits": edits, "disturbed": world.disturbed}
    told.append(entry)
    entry["trouble"] = stage.disturb(world.chance)
    entry["seconds"] = took = round(converge(world, CONVERGE_SECONDS), 1)
    entry["restarts"] = len(stage.restarts() - restarts)
    entry["permits"] = len(stage.permits - permits)
    sys.stderr.write(json.dumps(entry) + "\n")
    if not world.disturbed:
        assert stage.brokers.most_away <= 1, "two brokers were down at the same time"
        assert entry["restarts"] <= entry["permits"], "a broker was restarted without a permit"
    assert not (forbidden := stage.forbidden()), forbidden
    assert stage.brokers.killed == [], "brokers that are asked to stop do so"
    return took


def idle(stage: EditStage) -> list[str]:
    """Return the writes of operators while nothing changes."""
    mark = stage.kubernetes.audit_mark()
    stage.pause(IDLE_SECONDS)
    return stage.writes(mark)


@pytest.mark.scenario
@pytest.mark.prove
@pytest.mark.timeout(600 + EDITS * 90)
def test_random_edits_converge(kubernetes: Kubernetes, operators: Operators, tmp_path: Path) -> None:
    """The requested state is reached after every round of edits, kills and faults, and no further write follows."""
    rounds: list[Any] = []
    with edit_stage(kubernetes, operators, tmp_path) as stage:
        report: dict[str, Any] = {"seed": SEED, "edits": 0, "rounds": rounds}
        try:
            world = World(stage, random.Random(SEED))
            report["first_ready_seconds"] = round(converge(world, BEGIN_SECONDS), 1)
            slowest = 0.0
            while report["edits"] < EDITS:
                count = min(world.chance.randint(1, EDITS_AT_ONCE_MAX), EDITS - report["edits"])
                slowest = max(slowest, a_round(world, count, rounds))
                report["edits"] += len([each for each in rounds[-1]["edits"] if each != "undo"])
            # Undo the edits that are still refused or delayed.
            some_edits(world, 0)
            slowest = max(slowest, converge(world, CONVERGE_SECONDS))
            report |= {
                "slowest_seconds": round(slowest, 1),
                "operator_kills": stage.kills,
                "faults": stage.faults,
            }
            report |= {
                "broker_restarts": len(stage.restarts()),
                "permits": len(stage.permits),
                "idle_seconds": IDLE_SECONDS,
            }
            report["writes_while_idle"] = len(written := idle(stage))
            assert written == []
            assert stage.forbidden() == []
            assert stage.broken_operators() == []
        except BaseException:
            sys.stderr.write(f"the seed was FAIRLEAD_SEED={SEED}: {json.dumps(rounds, indent=1)}\n")
            raise
        finally:
            keep_figures(report)
