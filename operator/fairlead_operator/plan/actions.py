"""Actions in the plan of a Cluster, as plain values. `reconcile/` executes the actions and makes no decisions.

Every action is idempotent. An action identifies its object by uid if a new object may have the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from fairlead_api.configuration import ConfigInput


class RestartReason(StrEnum):
    """Reason for the restart of a broker, as shown in Events and in the status."""

    POD_SPEC_CHANGED = "PodSpecChanged"
    """The pod differs from its template in the image, the resources, or the pool's template in the spec."""
    CONFIG_CHANGED = "ConfigChanged"
    """A configuration key that brokers read only at startup has changed."""
    CLAIM_RESIZED = "ClaimResized"
    """The volume was enlarged, and its file system grows only when the pod restarts."""
    ADDRESS_CHANGED = "AddressChanged"
    """Clients must reach the broker by a new address, which the broker reads only at startup."""
    SECURITY_LOWERED = "SecurityLowered"
    """The least strict security mode of the broker is stricter than the mode in the spec."""
    ASKED = "RestartAsked"
    """A user requested a restart by annotation."""
    NEW_DISK_ASKED = "NewDiskAsked"
    """A user requested an empty disk by annotation."""


@dataclass(frozen=True, slots=True)
class RestartBroker:
    """Delete a pod, so that it is recreated.

    If `permit` is set, the pod is deleted only after the brokers have granted the restart.
    """

    broker: int
    pod: str
    uid: str
    reasons: tuple[RestartReason, ...]
    permit: bool
    claim: tuple[str, str] | None = None
    """Name and uid of the claim to delete with the pod."""
    announced_address: tuple[str, str] | None = None
    """Name of the claim on which the address is recorded, and the address that the broker reads at this restart. An
    empty address removes the annotation from the claim."""


@dataclass(frozen=True, slots=True)
class ResizeClaim:
    """Request a larger volume. A refusal by Kubernetes does not stop other actions."""

    claim: str
    size: str


@dataclass(frozen=True, slots=True)
class ReplaceSet:
    """Delete a StatefulSet without its pods, so that the next pass recreates it with new values of immutable fields."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteSet:
    """Delete the StatefulSet of a pool that was removed from the spec and has no brokers left."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ShrinkSet:
    """Lower the number of replicas of a StatefulSet whose pool was removed from the spec."""

    name: str
    replicas: int


@dataclass(frozen=True, slots=True)
class CordonBroker:
    """Cordon a broker, so that it gets no new replicas."""

    broker: int


@dataclass(frozen=True, slots=True)
class UncordonBroker:
    """Uncordon a broker, so that it gets new replicas again."""

    broker: int


@dataclass(frozen=True, slots=True)
class DrainBroker:
    """Drain a broker: move all its replicas to other brokers."""

    broker: int


@dataclass(frozen=True, slots=True)
class UndrainBroker:
    """Stop the drain of a broker."""

    broker: int


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """Remove a broker that no longer runs and has no replicas from the cluster."""

    broker: int


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """Change the cluster's dynamic configuration; the value None resets a key."""

    changes: Mapping[str, ConfigInput]


@dataclass(frozen=True, slots=True)
class NoteAddress:
    """Record on its claim the external address that a broker read when it was started for a different reason."""

    claim: str
    address: str


@dataclass(frozen=True, slots=True)
class MarkPod:
    """Copy the restart annotation of the Cluster to a pod."""

    pod: str
    value: str


@dataclass(frozen=True, slots=True)
class UnmarkCluster:
    """Remove the restart annotation from the Cluster, since every pod now has the annotation."""


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """Write an Event on the Cluster."""

    reason: str
    message: str
    warning: bool = False


BrokerAction: TypeAlias = (
    CordonBroker | UncordonBroker | DrainBroker | UndrainBroker | UnregisterBroker | AlterConfig
)
"""Actions that call the brokers."""
Action: TypeAlias = (
    BrokerAction
    | RestartBroker
    | ResizeClaim
    | ReplaceSet
    | DeleteSet
    | ShrinkSet
    | NoteAddress
    | MarkPod
    | UnmarkCluster
    | WriteEvent
)


@dataclass(frozen=True, slots=True)
class RestartRefusal:
    """Refusal by the brokers to permit a restart."""

    broker: int
    message: str
    partitions: tuple[str, ...] = ()
    """Partitions that do not allow the restart; empty if the permit is granted to another restart."""


@dataclass(slots=True, kw_only=True)
class Outcomes:
    """Outcomes of the actions of one pass; the failure of an action does not stop the following actions."""

    restarted: list[RestartBroker] = field(default_factory=list)
    refusals: list[RestartRefusal] = field(default_factory=list)
    refused_resizes: list[str] = field(default_factory=list)
    """Messages from the API server about claims that it refused to enlarge."""
    refused_objects: list[str] = field(default_factory=list)
    """Messages from the API server about objects that it refused."""
    refused_calls: list[str] = field(default_factory=list)
    """The brokers' messages about calls that they refused."""
    refused_quotas: list[str] = field(default_factory=list)
    """Reasons why the quotas that Users share cannot be set."""
    unavailable: str = ""
    """Reason why the brokers could not be called; empty while the brokers answer."""
