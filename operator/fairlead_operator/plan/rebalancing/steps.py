"""Next step of a Rebalance: a proposal, its approval, the moves that are due, and their cancellation.

`reconcile` stores the returned state before the next pass acts on it: no move begins before the proposal and its
approval are in the status, so that an operator that is started later knows which moves to continue or to cancel. Every
pass compares the moves of the proposal with the replicas that the brokers report.

    ProposalPending ──▶ ProposalReady ──approve──▶ Rebalancing ──▶ Completed
          ▲                   │                        │   │           │
          └──────refresh──────┴────────────────────────│───│──refresh──┤
          └──────────the proposal was not complete─────┘   └──stop──▶ Stopped
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead_api.resources.quantities import quantity
from fairlead_api.resources.rebalance import Rebalance, RebalanceState
from fairlead_operator.naming import REBALANCE_ANNOTATION
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.rebalancing.layout import Place
from fairlead_operator.plan.rebalancing.proposal import NAMED_MAX, Goal, Move, Proposal, propose
from fairlead_operator.plan.topic import CancelMove, MovePartition
from fairlead_operator.plan.topic_observed import LivePartition, LiveTopics

APPROVE: Final = "approve"
REFRESH: Final = "refresh"
STOP: Final = "stop"


@dataclass(frozen=True, slots=True)
class Standing:
    """Moves of a proposal by their state in the cluster."""

    done: tuple[Move, ...] = ()
    moving: tuple[Move, ...] = ()
    waiting: tuple[Move, ...] = ()
    """Moves that can begin."""
    held: tuple[Move, ...] = ()
    """Moves of partitions that are being moved to other brokers, by a drain or another client."""
    outdated: tuple[Move, ...] = ()
    """Moves of partitions that no longer exist or that other clients have moved."""

    @property
    def left(self) -> tuple[Move, ...]:
        """Moves that are not finished and not skipped."""
        return (*self.moving, *self.waiting, *self.held)


@dataclass(frozen=True, slots=True)
class Step:
    """One call about a partition."""

    place: Place
    action: MovePartition | CancelMove


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancePlan:
    """State after the pass, the calls to make in the pass, and facts for the status."""

    state: RebalanceState
    proposal: Proposal | None = None
    """New proposal, which replaces the proposal in the status."""
    steps: tuple[Step, ...] = ()
    answered: bool = False
    """Whether the annotation has taken effect and must be removed."""
    rates: Mapping[int, int | None] = field(default_factory=dict)
    """Bytes per second that each named broker may copy for moves, set before the calls; None for no limit."""
    standing: Standing | None = None
    """State of the moves of the proposal in the status; None before the moves begin."""
    findings: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = field(default_factory=tuple)


def moves_of(rebalance: Rebalance) -> tuple[Move, ...]:
    """Return the moves of the proposal in the status."""
    proposal = rebalance.status.proposal
    return tuple(
        Move(Place(each.topic, each.partition), each.previous, each.replicas)
        for each in (proposal.moves if proposal is not None else ())
    )


def standing_of(moves: Sequence[Move], live: LiveTopics) -> Standing:
    """Return the state of each move in the cluster."""
    found: dict[str, list[Move]] = {"done": [], "moving": [], "waiting": [], "held": [], "outdated": []}
    for move in moves:
        found[_state(move, _partition(live, move.place))].append(move)
    return Standing(**{name: tuple(group) for name, group in found.items()})


def plan_rebalance(rebalance: Rebalance, live: LiveTopics, other: str | None) -> RebalancePlan:
    """Return the plan of one pass. `other` is another Rebalance that moves partitions of the same Cluster."""
    answer = rebalance.metadata.annotations.get(REBALANCE_ANNOTATION)
    match rebalance.status.state:
        case "Rebalancing":
            standing = standing_of(moves_of(rebalance), live)
            return _stopped(rebalance, standing) if answer == STOP else _moved(rebalance, standing, answer)
        case state if state is None or state == "ProposalPending" or answer == REFRESH:
            return _proposed(rebalance, live, answered=answer == REFRESH)
        case "ProposalReady":
            return _approved(rebalance, standing_of(moves_of(rebalance), live), answer, other)
        case state:
            # The annotation is still there if the operator was stopped before it could remove the annotation.
            ended = APPROVE if state == "Completed" else STOP
            return RebalancePlan(state=state, answered=answer == ended, warnings=_unknown(answer, ended))


def needs_topics(rebalance: Rebalance) -> bool:
    """Return whether the plan depends on topics and replicas; the result is false after the moves have ended."""
    asked = rebalance.metadata.annotations.get(REBALANCE_ANNOTATION) == REFRESH
    return asked or rebalance.status.state not in {"Completed", "Stopped"}


def plan_withdrawal(rebalance: Rebalance, live: LiveTopics) -> tuple[Step, ...]:
    """Return the calls that cancel the moves of a Rebalance that is being deleted; empty if no move is in progress."""
    return _cancelled(standing_of(moves_of(rebalance), live))


def unpaced(rebalance: Rebalance) -> dict[int, int | None]:
    """Return the rates after the moves: the rate None, which means no limit, for each broker that received replicas."""
    return {broker: None for move in moves_of(rebalance) for broker in move.added}


def _paced(rebalance: Rebalance, standing: Standing) -> dict[int, int | None]:
    """Return the rate of each broker: the rate in the spec until all moves onto the broker are complete, then None."""
    text = rebalance.spec.bytes_per_second
    rate = None if text is None else max(1, int(quantity(text)))
    return unpaced(rebalance) | {broker: rate for move in standing.left for broker in move.added}


def _proposed(rebalance: Rebalance, live: LiveTopics, *, answered: bool) -> RebalancePlan:
    proposal = propose(Goal(rebalance.spec.mode, rebalance.spec.brokers), live)
    if isinstance(proposal, Finding):
        return RebalancePlan(state="ProposalPending", findings=(proposal,), answered=answered)
    state: RebalanceState = "ProposalReady" if proposal.moves else "Completed"
    return RebalancePlan(state=state, proposal=proposal, answered=answered)


def _approved(
    rebalance: Rebalance, standing: Standing, answer: str | None, other: str | None
) -> RebalancePlan:
    warnings = (*_outdated(standing), *_unknown(answer, APPROVE))
    if rebalance.spec.approval != "Automatic" and answer != APPROVE:
        return RebalancePlan(state="ProposalReady", warnings=warnings)
    if other is not None:
        waits = Finding("ResourceConflict", f"Rebalance {other} moves partitions of the same Cluster")
        return RebalancePlan(state="ProposalReady", findings=(waits,), warnings=warnings)
    return RebalancePlan(
        state="Rebalancing", answered=answer == APPROVE, standing=standing, warnings=warnings
    )


def _moved(rebalance: Rebalance, standing: Standing, answer: str | None) -> RebalancePlan:
    warnings = (*_outdated(standing), *_unknown(answer, APPROVE))
    answered = answer == APPROVE
    proposal = rebalance.status.proposal
    if not standing.left:
        complete = proposal is None or proposal.complete
        return RebalancePlan(
            state="Completed" if complete else "ProposalPending",
            rates=unpaced(rebalance),
            standing=standing,
            answered=answered,
            warnings=warnings,
        )
    room = max(0, rebalance.spec.concurrent_moves - len(standing.moving))
    steps = tuple(
        Step(move.place, MovePartition(move.place.partition, move.replicas))
        for move in standing.waiting[:room]
    )
    return RebalancePlan(
        state="Rebalancing",
        steps=steps,
        rates=_paced(rebalance, standing),
        standing=standing,
        answered=answered,
        warnings=warnings,
    )


def _stopped(rebalance: Rebalance, standing: Standing) -> RebalancePlan:
    if standing.moving:
        return RebalancePlan(state="Rebalancing", steps=_cancelled(standing), standing=standing)
    return RebalancePlan(state="Stopped", answered=True, standing=standing, rates=unpaced(rebalance))


def _cancelled(standing: Standing) -> tuple[Step, ...]:
    return tuple(Step(move.place, CancelMove(move.place.partition)) for move in standing.moving)


def _outdated(standing: Standing) -> tuple[Finding, ...]:
    if not standing.outdated:
        return ()
    names = ", ".join(str(move.place) for move in standing.outdated[:NAMED_MAX])
    count = len(standing.outdated)
    more = f" and {count - NAMED_MAX} more" if count > NAMED_MAX else ""
    return (Finding("ProposalOutdated", f"moves are skipped, since others changed {names}{more}"),)


def _unknown(answer: str | None, expected: str) -> tuple[Finding, ...]:
    if answer is None or answer == expected:
        return ()
    message = f"the annotation {REBALANCE_ANNOTATION} is {answer!r}, which has no meaning in this state"
    return (Finding("UnknownAnnotation", message),)


def _partition(live: LiveTopics, place: Place) -> LivePartition | None:
    topic = live.topics.get(place.topic)
    placement = topic.placement if topic is not None else ()
    return next((each for each in placement if each.index == place.partition), None)


def _state(move: Move, partition: LivePartition | None) -> str:
    if partition is None:
        return "outdated"
    if partition.target == move.replicas:
        return "moving" if partition.moving else "done"
    if partition.moving:
        return "held"
    return "waiting" if partition.target == move.previous else "outdated"
