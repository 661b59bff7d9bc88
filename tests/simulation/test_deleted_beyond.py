"""A replica that has deleted more than the next leader ever had begins anew, whichever way it came to its log start.

Only an unclean election makes such a leader, so these worlds are made for it: three replicas, nothing else goes wrong.
"""

from __future__ import annotations

from random import Random

from simulator import leading
from simulator.judge import DeletedByLeaders
from simulator.network import Weather
from simulator.plan import Drill, Plan, draw
from simulator.switches import BY_NAME, replaced
from simulator.world import Verdict, World, run

WORLDS = 24


def test_nothing_is_missing_that_no_leader_has_deleted() -> None:
    """Neither of a log that deleted its records itself nor of one that began empty where another one had."""
    verdicts = [verdict_of(seed) for seed in range(WORLDS)]

    assert [each.violation for each in verdicts] == [None] * WORLDS
    assert sum(each.counts.get("unclean elections", 0) for each in verdicts) >= WORLDS


def test_a_leader_sends_back_who_deleted_an_epoch_that_it_never_had() -> None:
    """Nothing of its list says how far such records go along: in the world of this seed they did not at all."""
    assert run(704_166).violation is None


def test_a_log_that_deleted_its_records_has_to_say_so() -> None:
    """Else it goes on from its start, behind records that the leader has appended meanwhile."""
    with BY_NAME["emptied"].drop():
        found = [verdict_of(seed).violation for seed in range(WORLDS)]

    assert any(isinstance(each, DeletedByLeaders) for each in found)


def test_a_log_that_begins_anew_has_to_be_told_what_was_before() -> None:
    """Else it knows of no epoch that it could tell the next leader."""
    with replaced((leading, "epoch_before", lambda epochs, offset: None)):
        found = [verdict_of(seed).violation for seed in range(WORLDS)]

    assert any(isinstance(each, DeletedByLeaders) for each in found)


def verdict_of(seed: int) -> Verdict:
    """Run the play in the world of a seed."""
    plan: Plan = draw(Random(seed))
    plan.drill, plan.unclean, plan.faults, plan.weather = Drill.DELETED_BEYOND, True, (), Weather()
    plan.brokers = plan.replicas = 3
    plan.partitions = plan.min_isr = plan.min_isr_least = 1
    plan.storm_seconds = 14.0
    return World(seed, plan).run()
