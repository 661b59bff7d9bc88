"""The steps of a Rebalance, from its proposal to its end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import find_condition
from fairlead_api.resources.rebalance import Rebalance, RebalanceStatus
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.rebalancing.status import RebalanceOutcome, rebalance_status
from fairlead_operator.plan.rebalancing.steps import (
    RebalancePlan,
    needs_topics,
    plan_rebalance,
    plan_withdrawal,
    unpaced,
)
from fairlead_operator.plan.topic import CancelMove, MovePartition
from fairlead_operator.plan.topic_observed import LiveBroker, LivePartition, LiveTopic, LiveTopics

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BROKERS = tuple(LiveBroker(number) for number in (1, 2, 3))


def partition(
    index: int, *replicas: int, adding: tuple[int, ...] = (), removing: tuple[int, ...] = ()
) -> LivePartition:
    """Return a partition that lists its removed replicas last."""
    return LivePartition(index, replicas, adding, removing, replicas)


def cluster(*partitions: LivePartition, brokers: tuple[LiveBroker, ...] = BROKERS) -> LiveTopics:
    """Return a cluster with the topic `t`."""
    topic = LiveTopic(
        name="t", topic_id="id", partitions=len(partitions), replication_factor=1, placement=partitions
    )
    return LiveTopics(brokers, {"t": topic})


FOUR = cluster(*(partition(index, 1) for index in range(4)))
"""Cluster of three brokers with four partitions on the first broker; two of the partitions must move."""


def rebalance(status: RebalanceStatus | None = None, answer: str | None = None, **spec: Any) -> Rebalance:
    """Return a Rebalance."""
    annotations = {"fairlead.dev/rebalance": answer} if answer is not None else {}
    metadata = {"name": "r", "namespace": "shop", "generation": 2, "annotations": annotations}
    told = (status or RebalanceStatus()).manifest()
    return Rebalance.parse(
        {"metadata": metadata, "spec": {"clusterRef": {"name": "main"}, **spec}, "status": told}
    )


def after(
    before: Rebalance, live: LiveTopics, other: str | None = None
) -> tuple[RebalancePlan, RebalanceStatus]:
    """Return the plan of a pass, and the status that the pass writes."""
    plan = plan_rebalance(before, live, other)
    return plan, rebalance_status(before, RebalanceOutcome(plan=plan), NOON)


def ready(status: RebalanceStatus) -> tuple[str, str]:
    """Return status and reason of the Ready condition."""
    found = find_condition(status.conditions, ConditionName.READY)
    assert found is not None
    return found.status, found.reason


def warning(status: RebalanceStatus) -> str | None:
    """Return the reason of the Warning condition."""
    found = find_condition(status.conditions, ConditionName.WARNING)
    return None if found is None else found.reason


def under_way(*, complete: bool = True, **spec: Any) -> RebalanceStatus:
    """Return the status after the approval of the moves of `FOUR`."""
    _, proposed = after(rebalance(**spec), FOUR)
    _, begun = after(rebalance(proposed, "approve", **spec), FOUR)
    assert begun.proposal is not None
    return begun.model_copy(update={"proposal": begun.proposal.model_copy(update={"complete": complete})})


def test_a_proposal_waits_for_approval_and_changes_nothing() -> None:
    """A new Rebalance gets a proposal that waits, and only `approve` or automatic approval begins its moves."""
    plan, proposed = after(rebalance(), FOUR)
    waiting, still = after(rebalance(proposed), FOUR)
    approved, begun = after(rebalance(proposed, "approve"), FOUR)
    automatic, _ = after(rebalance(proposed, approval="Automatic"), FOUR)

    assert (plan.state, plan.steps, plan.answered) == ("ProposalReady", (), False)
    assert ready(proposed) == ready(still) == ("False", "ProposalReady")
    assert still == proposed
    assert waiting.state == "ProposalReady"
    assert (approved.state, approved.steps, approved.answered) == ("Rebalancing", (), True)
    assert (automatic.state, automatic.answered) == ("Rebalancing", False)
    assert begun.progress is not None
    assert begun.progress.summary == "0/2"
    assert ready(begun) == ("False", "Rebalancing")


def test_only_one_rebalance_moves_a_cluster() -> None:
    """An approved Rebalance waits while another Rebalance moves partitions of the Cluster."""
    _, proposed = after(rebalance(), FOUR)
    plan, held = after(rebalance(proposed, "approve"), FOUR, other="first")

    assert (plan.state, plan.answered) == ("ProposalReady", False)
    assert ready(held) == ("False", "ResourceConflict")


def test_moves_begin_as_far_as_allowed_and_end() -> None:
    """At most `concurrentMoves` moves run at a time, and the status reports the numbers of moves at the end."""
    begun = under_way(concurrentMoves=1)
    first, moving = after(rebalance(begun, concurrentMoves=1), FOUR)
    assert [step.action for step in first.steps] == [MovePartition(0, (2,))]
    assert str(first.steps[0].place) == "t-0"
    live = cluster(
        partition(0, 2, 1, adding=(2,), removing=(1,)), *(partition(index, 1) for index in (1, 2, 3))
    )
    full, told = after(rebalance(moving, concurrentMoves=1), live)
    done = cluster(partition(0, 2), partition(1, 3), partition(2, 1), partition(3, 1))
    last, ended = after(rebalance(told), done)
    _, kept = after(rebalance(ended, "approve"), LiveTopics((), {}))

    assert full.steps == ()
    assert told.progress is not None
    assert (told.progress.partitions_moving, told.progress.partitions_moved) == (1, 0)
    assert find_condition(told.conditions, ConditionName.PROGRESSING).reason == "Reassigning"  # type: ignore[union-attr]
    assert last.state == "Completed"
    assert ready(ended) == ("True", "Completed")
    assert ended.progress is not None
    assert ended.progress.summary == "2/2"
    assert kept == ended


def test_receiving_brokers_are_paced_until_their_last_move() -> None:
    """A target broker has the rate limit in the spec until its last move has ended or the Rebalance is stopped."""
    begun = under_way()
    both, _ = after(rebalance(begun, bytesPerSecond="1.5Mi"), FOUR)
    live = cluster(partition(0, 2), *(partition(index, 1) for index in (1, 2, 3)))
    one, _ = after(rebalance(begun, bytesPerSecond="500m"), live)
    free, _ = after(rebalance(begun), live)
    stopped, _ = after(rebalance(begun, "stop", bytesPerSecond="1Mi"), FOUR)
    done, _ = after(rebalance(begun, bytesPerSecond="1Mi"), LiveTopics(BROKERS, {}))

    assert both.rates == {2: 3 << 19, 3: 3 << 19}
    assert one.rates == {2: None, 3: 1}
    assert free.rates == stopped.rates == done.rates == unpaced(rebalance(begun)) == {2: None, 3: None}


def test_what_others_move_is_waited_for_or_skipped() -> None:
    """A Rebalance waits for partitions that a drain moves, and skips and reports partitions that moved or are gone."""
    begun = under_way()
    held = cluster(partition(0, 3, 1, adding=(3,), removing=(1,)), partition(1, 2))
    plan, told = after(rebalance(begun), held)
    gone, ended = after(rebalance(told), LiveTopics(BROKERS, {}))

    assert (plan.state, plan.steps) == ("Rebalancing", ())
    assert warning(told) == "ProposalOutdated"
    assert gone.state == "Completed"
    assert "t-0, t-1" in gone.warnings[0].message
    assert ready(ended) == ("True", "Completed")


def test_many_skipped_partitions_are_counted() -> None:
    """A warning names at most ten partitions."""
    many = cluster(*(partition(index, 1) for index in range(40)), brokers=BROKERS[:2])
    _, proposed = after(rebalance(), many)
    plan, _ = after(rebalance(proposed), LiveTopics(BROKERS, {}))

    assert plan.warnings[0].message.endswith("and 10 more")


def test_an_incomplete_proposal_is_followed_by_another() -> None:
    """After the moves of an incomplete proposal, another proposal is computed, which needs its own approval."""
    done = cluster(partition(0, 2), partition(1, 3), partition(2, 1), partition(3, 1))
    plan, told = after(rebalance(under_way(complete=False)), done)
    following, proposed = after(rebalance(told), FOUR)

    assert plan.state == "ProposalPending"
    assert ready(told) == ("False", "Rebalancing")
    assert following.state == "ProposalReady"
    assert proposed.progress is None


def test_stop_cancels_moves_and_refresh_begins_again() -> None:
    """`stop` cancels the moves in progress until none is left, and `refresh` computes another proposal."""
    begun = under_way()
    live = cluster(
        partition(0, 2, 1, adding=(2,), removing=(1,)), *(partition(index, 1) for index in (1, 2, 3))
    )
    cancelling, told = after(rebalance(begun, "stop"), live)
    stopped, ended = after(rebalance(told, "stop"), FOUR)
    resting, same = after(rebalance(ended, "stop"), LiveTopics((), {}))
    again, renewed = after(rebalance(ended, "refresh"), FOUR)

    assert [step.action for step in cancelling.steps] == [CancelMove(0)]
    assert (cancelling.state, cancelling.answered) == ("Rebalancing", False)
    assert (stopped.state, stopped.answered, resting.answered) == ("Stopped", True, True)
    assert ready(ended) == ("False", "Stopped")
    assert same == ended
    assert (again.state, again.answered) == ("ProposalReady", True)
    assert renewed.progress is None
    assert [needs_topics(rebalance(ended, answer)) for answer in (None, "stop", "refresh")] == [
        False,
        False,
        True,
    ]
    assert [step.action for step in plan_withdrawal(rebalance(begun), live)] == [CancelMove(0)]
    assert plan_withdrawal(rebalance(), live) == ()


@pytest.mark.parametrize("state", ["ProposalReady", "Rebalancing", "Completed", "Stopped"])
def test_unknown_annotations_are_reported(state: str) -> None:
    """An annotation without a meaning in the current state is reported and not removed."""
    told = under_way().model_copy(update={"state": state})
    plan, status = after(rebalance(told, "go"), FOUR)

    assert (plan.state, plan.answered) == (state, False)
    assert warning(status) == "UnknownAnnotation"


def test_an_impossible_goal_is_reported_and_tried_again() -> None:
    """A Rebalance without its brokers has no proposal, and a Rebalance whose goal is reached completes at once."""
    plan, told = after(rebalance(mode="AddBrokers", brokers=[9]), FOUR)
    nothing, ended = after(rebalance(mode="RemoveBrokers", brokers=[2]), FOUR)

    assert (plan.state, plan.proposal) == ("ProposalPending", None)
    assert ready(told) == ("False", "BrokersNotFound")
    assert nothing.state == "Completed"
    assert ready(ended) == ("True", "Completed")


def test_a_silent_cluster_changes_only_the_condition() -> None:
    """While the brokers do not answer, the proposal, the state and the progress are kept."""
    begun = under_way()
    silent = RebalanceOutcome(findings=(Finding("ClusterNotReady", "no answer"),))
    told = rebalance_status(rebalance(begun), silent, NOON)

    assert ready(told) == ("Unknown", "ClusterNotReady")
    assert (told.state, told.proposal, told.progress) == (begun.state, begun.proposal, begun.progress)
