"""Observed state of an etcd, the input of its plan: StatefulSet, pods, claims and members.

`reconcile.etcd` fills the observed state from live objects, and `etcd_members` from the members' answers; `plan.etcd`
reads it. The operator keeps no state in memory between two passes; state that a later pass needs is stored in the
Kubernetes objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead_operator.naming import Scheme
from fairlead_operator.render.inputs import EtcdPhase

NO_SPACE: Final = "NOSPACE"
"""Alarm of a store that has reached its quota. While the NOSPACE alarm is set, etcd accepts only reads and deletes."""


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """One entry in the member list of etcd."""

    member_id: int
    name: str
    """Name of the member; empty for a member that was added and has never started."""
    peer_urls: tuple[str, ...]
    learner: bool = False

    @property
    def hex_id(self) -> str:
        """The member id in hexadecimal, as etcd's tools print it."""
        return f"{self.member_id:x}"


@dataclass(frozen=True, slots=True)
class EtcdStatus:
    """Status that one member reports about itself, even if the member has no leader."""

    member_id: int
    leader_id: int
    """Id of the leader; 0 if the member has no leader."""
    learner: bool = False
    version: str = ""
    errors: tuple[str, ...] = ()
    """Alarms of the member, such as `NOSPACE`, as etcd reports them."""
    store_bytes: int = 0
    """Size of the member's store in bytes."""

    @property
    def healthy(self) -> bool:
        """Whether the member follows a leader and reports no alarm."""
        return self.leader_id != 0 and not self.errors

    @property
    def healthy_but_full(self) -> bool:
        """Whether the member follows a leader and reports no alarm except `NOSPACE`."""
        return self.leader_id != 0 and all(NO_SPACE in error for error in self.errors)


@dataclass(frozen=True, slots=True)
class EtcdSet:
    """The live StatefulSet of etcd."""

    replicas: int
    initial_cluster: str
    """Initial cluster in the template, as `name=url,...`, for a member with an empty volume."""
    state: str
    """Initial cluster state in the template: `new` or `existing`."""
    settled: bool = True
    """Whether the StatefulSet controller has observed this template and will use it to recreate a deleted pod."""
    pod_spec_hash: str = ""
    quota_bytes: int = 0
    """Store quota in the template, in bytes."""
    phase: EtcdPhase = "plain"
    """Listeners of members in the template."""


@dataclass(frozen=True, slots=True)
class EtcdPod:
    """A pod of the etcd StatefulSet."""

    uid: str
    ready: bool = False
    deleting: bool = False
    initial_cluster: str = ""
    """Initial cluster of this pod."""
    state: str = ""
    pod_spec_hash: str = ""
    restart: str = ""
    """Reason for a requested restart; empty if no restart is requested."""
    empty_volume: bool = False
    """Whether an annotation requests the deletion of the pod's volume."""
    created: str = ""
    """Creation time of the pod in Kubernetes' format, which sorts as text."""
    quota_bytes: int = 0
    """Store quota of this pod in bytes; 0 if the pod has no quota."""
    phase: EtcdPhase = "plain"
    """Listeners of this pod's member."""


@dataclass(frozen=True, slots=True)
class EtcdClaim:
    """The claim of a member's volume."""

    uid: str
    member_id: str = ""
    """Hexadecimal id of the member whose data is in the volume; empty until a member has been seen running on the
    volume."""
    deleting: bool = False
    size_bytes: int = 0
    """Size of the claim in bytes, as requested and granted; 0 if unknown."""
    growing: bool = False
    """Whether the volume is still smaller than the requested size."""
    waits_for_restart_since: str = ""
    """Time at which the volume was enlarged, if its file system grows only at the next start of the pod; empty
    otherwise."""


@dataclass(frozen=True, slots=True)
class EtcdRestart:
    """A restart of a member by the operator, as recorded in the status of the Cluster."""

    ordinal: int
    reason: str
    since: str
    """Start of the restart, in Kubernetes' time format."""
    overdue: bool = False
    """Whether the restart has taken so long that it no longer explains an unhealthy member."""


@dataclass(frozen=True, slots=True)
class ObservedEtcd:
    """Observed state of one etcd. All mappings are keyed by the ordinal of the member."""

    live: EtcdSet | None = None
    pods: Mapping[int, EtcdPod] = field(default_factory=dict)
    claims: Mapping[int, EtcdClaim] = field(default_factory=dict)
    members: tuple[EtcdMember, ...] | None = None
    """Member list that a majority confirms; None if no majority confirms a list."""
    answers: Mapping[int, EtcdStatus] = field(default_factory=dict)
    """Status of each member that answered."""
    restart: EtcdRestart | None = None
    """Last restart that the operator ordered, kept until the restarted member has been seen healthy again."""
    broker_schemes: frozenset[Scheme] = frozenset()
    """URL schemes that brokers use to call etcd, as observed in their pods and pod templates."""
    refused: str = ""
    """Message from the API server about a missing pod that it refuses; empty if no pod is refused."""
