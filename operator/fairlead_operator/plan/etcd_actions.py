"""What the plan of a managed etcd may order, and what it answers. Each order names the very object that was judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead_api.resources.cluster_status import EtcdStatus as EtcdRows
from fairlead_api.resources.conditions import Truth
from fairlead_operator.plan.etcd_observed import EtcdRestart
from fairlead_operator.render.inputs import EtcdInputs


@dataclass(frozen=True, slots=True)
class RecordMember:
    """Write on the claim whose data is in its volume, before anything depends on it."""

    ordinal: int
    claim_uid: str
    member_id: str
    """Hexadecimal."""


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Add a member that does not vote yet."""

    ordinal: int
    peer_url: str
    reason: str


@dataclass(frozen=True, slots=True)
class PromoteLearner:
    """Let a learner vote; etcd says no until it has read far enough, which is no failure."""

    ordinal: int
    member_id: int


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Take a member out of etcd, for ever."""

    ordinal: int
    member_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Let another member lead before the leader is taken out."""

    ordinal: int
    """URL of the leader, which gets the call."""
    target: int
    target_id: int


@dataclass(frozen=True, slots=True)
class DeleteEtcdPod:
    """Delete a pod, so that it comes back by the newest template; its volume stays."""

    ordinal: int
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteEtcdClaim:
    """Delete a claim whose data belongs to no member, together with its pod, which uses it."""

    ordinal: int
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class DisarmNoSpace:
    """Let etcd take writes again: its store has room, which it does not notice by itself."""

    ordinal: int
    """URL of the member that gets the call; the change applies to all."""


EtcdAction: TypeAlias = (
    RecordMember
    | AddLearner
    | PromoteLearner
    | RemoveMember
    | TransferLeadership
    | DeleteEtcdPod
    | DeleteEtcdClaim
    | DisarmNoSpace
)


@dataclass(frozen=True, slots=True)
class EtcdVerdict:
    """The condition EtcdHealthy: a status, and a reason of the catalogue."""

    status: Truth
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class EtcdPlan:
    """One step: what to draw first, what to do then, what to tell."""

    inputs: EtcdInputs | None
    """None where etcd is external."""
    actions: tuple[EtcdAction, ...]
    """In their order, after the objects have been applied; at most one changes the members."""
    status: EtcdRows
    verdict: EtcdVerdict
    requeue_seconds: float | None
    """When to look again although no object changes; None for not before the usual time."""
    changes: str = ""
    """What is being changed, for people; empty when nothing is."""
    restart: EtcdRestart | None = None
    """The restart that is still under way."""
