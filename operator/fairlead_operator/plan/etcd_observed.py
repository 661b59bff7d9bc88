"""What is known of an etcd before anything is decided about it: its StatefulSet, pods and claims, and its members.

Filled by `reconcile.etcd` from live objects and by `etcd_members` from the members' answers; read by `plan.etcd`.
Values only. Nothing here is remembered between two looks: what has to last stands in the objects themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

NO_SPACE: Final = "NOSPACE"
"""The alarm that the store has reached its quota: etcd then only reads and deletes."""


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """One entry of etcd's own list of members."""

    member_id: int
    name: str
    """Empty for one that was added and has never started."""
    peer_urls: tuple[str, ...]
    learner: bool = False

    @property
    def hex_id(self) -> str:
        """The id as etcd's own tools write it."""
        return f"{self.member_id:x}"


@dataclass(frozen=True, slots=True)
class EtcdStatus:
    """What one member says of itself. It says so without a leader, too."""

    member_id: int
    leader_id: int
    """0 where the member sees no leader."""
    learner: bool = False
    version: str = ""
    errors: tuple[str, ...] = ()
    """Alarms, such as `NOSPACE`, in etcd's words."""
    store_bytes: int = 0
    """How large its store is."""

    @property
    def healthy(self) -> bool:
        """Whether it follows a leader and has nothing to complain about."""
        return self.leader_id != 0 and not self.errors

    @property
    def healthy_but_full(self) -> bool:
        """Whether it follows a leader and complains about nothing but a store that takes no more."""
        return self.leader_id != 0 and all(NO_SPACE in error for error in self.errors)


@dataclass(frozen=True, slots=True)
class EtcdSet:
    """The StatefulSet as it stands."""

    replicas: int
    initial_cluster: str
    """Initial cluster of its template, as `name=url,...`, for a member with an empty volume."""
    state: str
    """Initial cluster state of its template: `new` or `existing`."""
    settled: bool = True
    """Whether its controller has seen this template, so that a pod that is deleted now comes back by it."""
    pod_spec_hash: str = ""
    quota_bytes: int = 0
    """How large a store its template allows."""


@dataclass(frozen=True, slots=True)
class EtcdPod:
    """A pod of the StatefulSet."""

    uid: str
    ready: bool = False
    deleting: bool = False
    initial_cluster: str = ""
    """Initial cluster of this pod."""
    state: str = ""
    pod_spec_hash: str = ""
    restart: str = ""
    """Reason of a requested restart; empty without a request."""
    empty_volume: bool = False
    """Whether an annotation asks to delete its volume."""
    created: str = ""
    """When, as Kubernetes writes times: later ones are larger."""
    quota_bytes: int = 0
    """Store quota of this pod in bytes; 0 without one."""


@dataclass(frozen=True, slots=True)
class EtcdClaim:
    """The claim of a member's volume."""

    uid: str
    member_id: str = ""
    """Hexadecimal id of the member whose data is in it; empty as long as none has been seen running on it."""
    deleting: bool = False
    size_bytes: int = 0
    """Requested and granted size of the claim in bytes; 0 if unknown."""
    growing: bool = False
    """Whether its volume does not have that yet."""
    waits_for_restart_since: str = ""
    """When the volume was made larger, while its file system has not grown: that happens when a pod starts."""


@dataclass(frozen=True, slots=True)
class EtcdRestart:
    """The restart of a member by the operator, as the status of the Cluster remembers it."""

    ordinal: int
    reason: str
    since: str
    """When, as Kubernetes writes times."""
    overdue: bool = False
    """Whether the restart has taken so long that it no longer explains an unhealthy member."""


@dataclass(frozen=True, slots=True)
class ObservedEtcd:
    """Everything, by ordinal where it belongs to one."""

    live: EtcdSet | None = None
    pods: Mapping[int, EtcdPod] = field(default_factory=dict)
    claims: Mapping[int, EtcdClaim] = field(default_factory=dict)
    members: tuple[EtcdMember, ...] | None = None
    """Members by the answer of a majority; None without a majority."""
    answers: Mapping[int, EtcdStatus] = field(default_factory=dict)
    """Health of the pods that answered."""
    restart: EtcdRestart | None = None
    """Last restart that the operator ordered, until the member was seen healthy again."""
    refused: str = ""
    """Words with which the API server refuses a missing pod; empty without a refusal."""
