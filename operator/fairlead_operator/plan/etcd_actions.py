"""Actions and result of a plan for a managed etcd.

Each action identifies the observed member by its id, or the observed object by its uid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead_api.resources.cluster_status import EtcdStatus as EtcdRows
from fairlead_api.resources.conditions import Truth
from fairlead_operator.plan.etcd_observed import EtcdRestart
from fairlead_operator.render.inputs import EtcdInputs


@dataclass(frozen=True, slots=True)
class RecordMember:
    """Record on a claim which member's data is in its volume, before a later step depends on this record."""

    ordinal: int
    claim_uid: str
    member_id: str
    """Member id in hexadecimal."""


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Add a member as a learner, which does not vote yet."""

    ordinal: int
    peer_url: str
    reason: str


@dataclass(frozen=True, slots=True)
class PromoteLearner:
    """Promote a learner to a voter. A refusal because the learner has not caught up is not a failure."""

    ordinal: int
    member_id: int


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Remove a member from etcd permanently."""

    ordinal: int
    member_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class MoveMember:
    """Change the peer URL of a member to one at which the member already listens."""

    ordinal: int
    member_id: int
    peer_url: str


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """Transfer leadership to another member before the leader is removed."""

    ordinal: int
    """Ordinal of the leader, which receives the call."""
    target: int
    target_id: int


@dataclass(frozen=True, slots=True)
class DeleteEtcdPod:
    """Delete a pod, so that the pod is recreated from the newest template; the volume of the pod is kept."""

    ordinal: int
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteEtcdClaim:
    """Delete a claim whose data belongs to no member, together with the pod that uses it."""

    ordinal: int
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class DisarmNoSpace:
    """Disarm the `NOSPACE` alarm, which etcd never disarms by itself, so that etcd accepts writes again."""

    ordinal: int
    """Ordinal of the member to which the call is sent; the change applies to all members."""


EtcdAction: TypeAlias = (
    RecordMember
    | AddLearner
    | PromoteLearner
    | RemoveMember
    | MoveMember
    | TransferLeadership
    | DeleteEtcdPod
    | DeleteEtcdClaim
    | DisarmNoSpace
)


@dataclass(frozen=True, slots=True)
class EtcdVerdict:
    """The EtcdHealthy condition: a status, a reason from the catalogue, and a message."""

    status: Truth
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class EtcdPlan:
    """One step of a managed etcd: inputs for rendering, actions to execute afterwards, and facts for the status."""

    inputs: EtcdInputs | None
    """Inputs for rendering; None for an external etcd."""
    actions: tuple[EtcdAction, ...]
    """Actions in order, executed after the objects have been applied; at most one action changes the members."""
    status: EtcdRows
    verdict: EtcdVerdict
    requeue_seconds: float | None
    """Seconds until the next pass if no object changes; None for the usual interval."""
    changes: str = ""
    """Description of the change in progress; empty if no change is in progress."""
    restart: EtcdRestart | None = None
    """The restart in progress; None if no member is being restarted."""
