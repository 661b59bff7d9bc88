"""Status of a Rebalance after a pass.

`reconcile` calls this module, which does no I/O: the time is an argument, and only a changed condition receives the new
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, Truth, condition, set_condition
from fairlead_api.resources.rebalance import (
    BrokerLoad,
    Rebalance,
    RebalanceMove,
    RebalanceProgress,
    RebalanceProposal,
    RebalanceStatus,
)
from fairlead_operator.plan.findings import Finding, unready, with_warnings
from fairlead_operator.plan.rebalancing.proposal import Proposal
from fairlead_operator.plan.rebalancing.steps import RebalancePlan, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceOutcome:
    """Result of a pass over a Rebalance."""

    plan: RebalancePlan | None = None
    """Plan of the pass; None if the pass ended before its plan."""
    findings: tuple[Finding, ...] = ()
    """Reasons why the pass could not finish, the most severe first, in addition to the findings of the plan."""
    bytes_left: int | None = None


def rebalance_status(rebalance: Rebalance, outcome: RebalanceOutcome, now: datetime) -> RebalanceStatus:
    """Return the status of a Rebalance after a pass over its whole spec."""
    generation = rebalance.metadata.generation
    status = rebalance.status.model_copy(update={"observed_generation": generation, **_facts(outcome)})
    conditions = set_condition(status.conditions, _ready(status, outcome, now=now, generation=generation))
    conditions = set_condition(conditions, _progressing(status, now=now, generation=generation))
    warnings = outcome.plan.warnings if outcome.plan is not None else ()
    conditions = with_warnings(conditions, warnings, now=now, generation=generation)
    return status.model_copy(update={"conditions": conditions})


def _facts(outcome: RebalanceOutcome) -> dict[str, object]:
    """Return the changed fields of the status; the proposal and its progress are kept until the next proposal."""
    plan = outcome.plan
    if plan is None:
        return {}
    changed: dict[str, object] = {"state": plan.state}
    if plan.proposal is not None:
        changed |= {"proposal": _proposal(plan.proposal), "progress": None}
    if plan.standing is not None:
        changed["progress"] = _progress(plan.standing, outcome.bytes_left)
    return changed


def _ready(
    status: RebalanceStatus, outcome: RebalanceOutcome, *, now: datetime, generation: int
) -> Condition:
    findings = (*outcome.findings, *(outcome.plan.findings if outcome.plan is not None else ()))
    if findings:
        return unready(findings, now=now, generation=generation)
    truth: Truth = "True" if status.state == "Completed" else "False"
    # A proposal that was not complete is followed by another proposal at once.
    reason = "Rebalancing" if status.state in {None, "ProposalPending"} else str(status.state)
    return condition(ConditionName.READY, truth, reason, _message(status), now=now, generation=generation)


def _message(status: RebalanceStatus) -> str:
    if status.progress is not None:
        return f"{status.progress.summary} partitions are moved"
    if status.proposal is None or not status.proposal.moves:
        return "no partition has to move"
    return (
        f"{len(status.proposal.moves)} partitions would move, and {status.proposal.replicas_moved} replicas would be "
        "copied; the moves begin when the annotation fairlead.dev/rebalance is approve"
    )


def _progressing(status: RebalanceStatus, *, now: datetime, generation: int) -> Condition:
    type_, progress = ConditionName.PROGRESSING, status.progress
    if status.state != "Rebalancing" or progress is None:
        return condition(
            type_, "False", "UpToDate", "no change is in progress", now=now, generation=generation
        )
    message = f"{progress.summary} partitions are moved, and {progress.partitions_moving} are being moved"
    return condition(type_, "True", "Reassigning", message, now=now, generation=generation)


def _proposal(proposal: Proposal) -> RebalanceProposal:
    return RebalanceProposal(
        replicas_moved=sum(len(move.added) for move in proposal.moves),
        moves=tuple(
            RebalanceMove(
                topic=move.place.topic,
                partition=move.place.partition,
                previous=move.previous,
                replicas=move.replicas,
            )
            for move in proposal.moves
        ),
        brokers=tuple(
            BrokerLoad(
                id=each.broker,
                replicas=each.replicas,
                replicas_after=each.replicas_after,
                leaders=each.leaders,
                leaders_after=each.leaders_after,
            )
            for each in proposal.loads
        ),
        complete=proposal.complete,
    )


def _progress(standing: Standing, bytes_left: int | None) -> RebalanceProgress:
    moved = len(standing.done) + len(standing.outdated)
    total = moved + len(standing.moving) + len(standing.waiting) + len(standing.held)
    return RebalanceProgress(
        partitions_total=total,
        partitions_moved=moved,
        partitions_moving=len(standing.moving),
        bytes_left=bytes_left,
        summary=f"{moved}/{total}",
    )
