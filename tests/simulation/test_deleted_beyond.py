"""A replica restarts its log if the log begins after the end of the next leader's log, whatever the reason.

A leader whose log ends before the log start of a follower exists only after an unclean election. The worlds of these
tests have three replicas, unclean elections, and no other faults.
"""

from __future__ import annotations

from random import Random

from fairlead_broker.replication import follower
from partitions import leading
from partitions.judge import DeletedByLeaders
from partitions.plan import Drill, Plan, draw
from partitions.world import World, run
from simulator.network import Weather
from simulator.search import PARTITIONS
from simulator.switches import replaced
from simulator.world import Verdict

WORLDS = 24


def test_nothing_is_missing_that_no_leader_has_deleted() -> None:
    """No log lacks a committed record that no leader has deleted, even if it deleted records or began empty."""
    verdicts = [verdict_of(seed) for seed in range(WORLDS)]

    assert [each.violation for each in verdicts] == [None] * WORLDS
    assert sum(each.counts.get("unclean elections", 0) for each in verdicts) >= WORLDS


def test_a_leader_sends_back_a_follower_that_deleted_an_unknown_epoch() -> None:
    """A leader makes a follower restart its log if the follower deleted records of an epoch unknown to the leader."""
    assert run(704_166).violation is None


def test_a_log_that_deleted_its_records_has_to_say_so() -> None:
    """If a log does not report the epoch of its deleted records, it may lack records that no leader has deleted."""
    with PARTITIONS.by_name["emptied"].drop():
        found = [verdict_of(seed).violation for seed in range(WORLDS)]

    assert any(isinstance(each, DeletedByLeaders) for each in found)


def test_a_log_that_restarts_has_to_learn_the_epoch_before() -> None:
    """If a restarted log does not keep the epoch before its start, it may lack records that no leader has deleted."""
    with replaced((leading, "epoch_before", lambda epochs, offset: None)):
        found = [verdict_of(seed).violation for seed in range(WORLDS)]

    assert any(isinstance(each, DeletedByLeaders) for each in found)


def test_a_log_that_diverges_below_its_start_has_to_name_an_epoch() -> None:
    """An emptied log without an epoch may lack records of a leader that was elected uncleanly."""
    seeds = (2, 3, 5)
    with replaced((leading, "epoch_before", lambda epochs, offset: None)):
        named = [type(verdict_of(seed).violation) for seed in seeds]
        with replaced((follower, "EpochStart", lambda epoch, start_offset: None)):
            unnamed = [type(verdict_of(seed).violation) for seed in seeds]

    assert named == [type(None)] * 3
    assert unnamed == [DeletedByLeaders] * 3


def verdict_of(seed: int) -> Verdict:
    """Run the drill in the world of a seed."""
    plan: Plan = draw(Random(seed))
    plan.drill, plan.unclean, plan.faults, plan.weather = Drill.DELETED_BEYOND, True, (), Weather()
    plan.brokers = plan.replicas = 3
    plan.partitions = plan.min_isr = plan.min_isr_least = 1
    plan.storm_seconds = 14.0
    return World(seed, plan).run()
