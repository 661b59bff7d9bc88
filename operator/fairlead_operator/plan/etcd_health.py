"""The EtcdHealthy condition and the status rows of etcd members, computed from the observed state alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from fairlead_api.resources.cluster_status import EtcdMemberStatus
from fairlead_api.resources.cluster_status import EtcdStatus as EtcdRows
from fairlead_operator.plan.etcd_actions import EtcdPlan, EtcdVerdict
from fairlead_operator.plan.etcd_observed import EtcdStatus
from fairlead_operator.plan.etcd_view import EtcdView

EXTERNAL_SECONDS: Final = 30.0
"""Interval between passes while an external etcd does not answer."""
RUNBOOK: Final = (
    "Start the pods again: check their events and the claims of their volumes. Once a majority of the members run "
    "with their own data, etcd recovers without further action. Do not delete the volumes: they contain the only "
    "copies of the data. If the volumes are lost, restore a snapshot as described on the page on troubleshooting."
)

Role = Literal["leader", "follower", "learner", "unknown"]


def etcd_verdict(view: EtcdView) -> EtcdVerdict:
    """Return the condition of a managed etcd, with the API server's message if it refuses a pod."""
    verdict = _verdict(view)
    if verdict.status == "True" or not view.observed.refused:
        return verdict
    return replace(verdict, message=f"{verdict.message}; the API server says: {view.observed.refused}")


def _verdict(view: EtcdView) -> EtcdVerdict:
    if not view.formed:
        waiting = _names(
            view, [each for each in range(view.wish.replicas) if each not in view.observed.answers]
        )
        return EtcdVerdict(
            "False", "Starting", f"members are starting for the first time: waiting for {waiting}"
        )
    restart = None if view.restart is None or view.restart.overdue else view.restart
    if not view.knows_members:
        alone = restart is not None and view.live is not None and view.live.replicas == 1
        return EtcdVerdict("False", "RestartingMember", _restarting(view)) if alone else _no_majority(view)
    if view.lost:
        return EtcdVerdict("False", "MemberLost", _replacing(view))
    sick = [ordinal for ordinal in view.members if ordinal != view.joining and not view.healthy(ordinal)]
    if restart is not None and sick == [restart.ordinal] and view.others_carry(restart.ordinal):
        said = f"{_restarting(view)}; the other members are a majority and continue"
        return EtcdVerdict("True", "RestartingMember", said)
    if sick:
        said = (
            f"{_names(view, sick)} {_verb(sick)} not healthy; the other members are a majority and continue"
        )
        return EtcdVerdict("False", "MembersUnhealthy", said + _errors(view, sick))
    if held := [ordinal for ordinal in view.members if not view.may_go(ordinal)]:
        said = (
            f"the claim of {_names(view, held)} was deleted, so its data is lost when the pod ends; the pod is "
            "not restarted: save a snapshot of etcd, then restore it as described on the page on troubleshooting"
        )
        return EtcdVerdict("False", "MembersUnhealthy", said)
    if view.unfinished:
        return EtcdVerdict("True", "ChangingMembers", _changing(view))
    strangers = ", ".join(member.name or member.hex_id for member in view.strangers)
    left_alone = f"; members that the operator does not manage: {strangers}" if strangers else ""
    return EtcdVerdict("True", "Healthy", f"{len(view.members)} of {view.wish.replicas} members{left_alone}")


def etcd_changes(view: EtcdView) -> str:
    """Return a description of the change that is pending or in progress; empty if there is no change."""
    if not view.formed:
        return ""
    if view.knows_members and view.unfinished:
        return _replacing(view) if view.lost else _changing(view)
    if view.restart is not None:
        return _restarting(view)
    due = view.restarts_due
    if not due:
        return ""
    reasons = "; ".join(dict.fromkeys(due.values()))
    return f"{_names(view, list(due))} {_verb(list(due))} to be restarted: {reasons}"


def etcd_rows(view: EtcdView, replicas: int) -> EtcdRows:
    """Return the status rows of a managed etcd: pods and members by ordinal."""
    ordinals = sorted({*view.members, *(each for each in view.observed.pods if each < len(view.wish.places))})
    rows = tuple(_row(view, ordinal) for ordinal in ordinals)
    return EtcdRows(replicas=replicas, ready=sum(row.healthy for row in rows), members=rows)


def plan_external(
    endpoints: Sequence[str], answers: Mapping[str, EtcdStatus], *, asked: Collection[str]
) -> EtcdPlan:
    """Return the status of an external etcd, which the operator never changes.

    `asked` contains the endpoints that were called. The operator has no permission to read Secrets, so it skips
    endpoints that need a Secret.
    """
    rows = tuple(_external_row(url, answers.get(url)) for url in endpoints)
    healthy = sum(row.healthy for row in rows)
    status = EtcdRows(replicas=len(rows), ready=healthy, members=rows)
    if healthy > len(rows) // 2:
        verdict = EtcdVerdict("True", "External", f"{healthy} of {len(rows)} endpoints are healthy")
    elif not asked:
        said = (
            "the operator does not check endpoints that need certificates or a password; the brokers use them"
        )
        verdict = EtcdVerdict("Unknown", "External", said)
    else:
        silent = ", ".join(row.name for row in rows if not row.healthy)
        verdict = EtcdVerdict("Unknown", "Unreachable", f"no healthy answer from {silent}")
    return EtcdPlan(None, (), status, verdict, None if verdict.reason == "External" else EXTERNAL_SECONDS)


def _no_majority(view: EtcdView) -> EtcdVerdict:
    pods = view.observed.pods
    ready = [ordinal for ordinal, pod in pods.items() if pod.ready]
    if len(ready) > len(pods) // 2:
        said = f"{_names(view, ready)} {_verb(ready)} ready, but the operator got no answer; check the network policies"
        return EtcdVerdict("Unknown", "Unreachable", said)
    expected = max(view.live.replicas if view.live else 0, len(view.observed.claims))
    down = [ordinal for ordinal in range(expected) if ordinal not in ready]
    said = f"no majority of the etcd members answers; not ready: {_names(view, down)}. {RUNBOOK}"
    return EtcdVerdict("False", "QuorumLost", said)


def _replacing(view: EtcdView) -> str:
    [ordinal, *_] = view.lost
    name = _names(view, [ordinal])
    if view.others_carry(ordinal):
        return f"the volume of {name} is lost: the member is removed from etcd, and a new member replaces it"
    return f"the volume of {name} is lost: the member stays until the other members are a healthy majority"


def _restarting(view: EtcdView) -> str:
    assert view.restart is not None, "a restart is in progress"
    return f"{_names(view, [view.restart.ordinal])} is being restarted: {view.restart.reason}"


def _changing(view: EtcdView) -> str:
    if view.joining is not None:
        return f"{_names(view, [view.joining])} joins as a learner; it votes once it has caught up"
    if view.missing is not None:
        return f"{_names(view, [view.missing])} is to be added"
    assert view.surplus is not None, "without a joining or missing member, there is a surplus member"
    return f"{_names(view, [view.surplus])} is to be removed from etcd"


def _errors(view: EtcdView, ordinals: Sequence[int]) -> str:
    said = [error for each in ordinals if view.runs(each) for error in view.observed.answers[each].errors]
    return f" ({'; '.join(said)})" if said else ""


def _names(view: EtcdView, ordinals: Sequence[int]) -> str:
    names = [view.wish.places[each].name for each in sorted(ordinals) if each < len(view.wish.places)]
    return ", ".join(names) or "no member"


def _verb(ordinals: Sequence[int]) -> str:
    return "is" if len(ordinals) == 1 else "are"


def _row(view: EtcdView, ordinal: int) -> EtcdMemberStatus:
    name = view.wish.places[ordinal].name
    member = view.members.get(ordinal)
    if member is None:
        return EtcdMemberStatus(name=name)
    role: Role = "unknown"
    if member.learner:
        role = "learner"
    elif view.runs(ordinal):
        role = "leader" if view.leads(ordinal) else "follower"
    return EtcdMemberStatus(name=name, id=member.hex_id, role=role, healthy=view.healthy(ordinal))


def _external_row(url: str, answer: EtcdStatus | None) -> EtcdMemberStatus:
    if answer is None:
        return EtcdMemberStatus(name=url)
    role: Role = (
        "leader" if answer.leader_id == answer.member_id else "learner" if answer.learner else "follower"
    )
    return EtcdMemberStatus(name=url, id=f"{answer.member_id:x}", role=role, healthy=answer.healthy)
