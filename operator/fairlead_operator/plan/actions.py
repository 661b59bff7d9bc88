"""What the plan of a Cluster orders to be done, as values: `reconcile/` carries them out and decides nothing.

Every order is such that doing it twice does no harm: each names the very object that it means, by uid where a new one
may have the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from fairlead_api.configuration import ConfigInput


class RestartReason(StrEnum):
    """Why a broker is restarted, the word that Events and status use."""

    POD_SPEC_CHANGED = "PodSpecChanged"
    """The pod's template differs: image, resources, or what the pool's template says."""
    CONFIG_CHANGED = "ConfigChanged"
    """A key differs that is only read at the start."""
    CLAIM_RESIZED = "ClaimResized"
    """The file system grows when the pod starts again."""
    ADDRESS_CHANGED = "AddressChanged"
    """Clients are to reach it by another address, which it learns when it starts."""
    ASKED = "RestartAsked"
    """A user asked for it by annotation."""
    NEW_DISK_ASKED = "NewDiskAsked"
    """A user asked for an empty disk by annotation."""


@dataclass(frozen=True, slots=True)
class RestartBroker:
    """Delete a pod so that it comes back; with `permit` only when the cluster grants it, and never otherwise."""

    broker: int
    pod: str
    uid: str
    reasons: tuple[RestartReason, ...]
    permit: bool
    claim: tuple[str, str] | None = None
    """Name and uid of the claim to delete with it."""
    told_address: tuple[str, str] | None = None
    """Name of the claim on which it is noted, and the address that the broker learns by this restart; an empty one is
    forgotten."""


@dataclass(frozen=True, slots=True)
class ResizeClaim:
    """Ask for a larger volume. Kubernetes may refuse, which stops nothing else."""

    claim: str
    size: str


@dataclass(frozen=True, slots=True)
class ReplaceSet:
    """Delete a StatefulSet and keep its pods, to create it again with fields that cannot change in place."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteSet:
    """Delete the StatefulSet of a pool that is gone from the spec and has no broker any more."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ShrinkSet:
    """Lower the replicas of a StatefulSet whose pool is gone from the spec."""

    name: str
    replicas: int


@dataclass(frozen=True, slots=True)
class CordonBroker:
    """No new replicas."""

    broker: int


@dataclass(frozen=True, slots=True)
class UncordonBroker:
    """New replicas again."""

    broker: int


@dataclass(frozen=True, slots=True)
class DrainBroker:
    """Move everything off."""

    broker: int


@dataclass(frozen=True, slots=True)
class UndrainBroker:
    """Stop that."""

    broker: int


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """Forget a broker that is gone and keeps nothing."""

    broker: int


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """Change the cluster's dynamic configuration; None resets a key."""

    changes: Mapping[str, ConfigInput]


@dataclass(frozen=True, slots=True)
class NoteAddress:
    """Note on a claim the address from outside that its broker has learned without a restart for it."""

    claim: str
    address: str


@dataclass(frozen=True, slots=True)
class MarkPod:
    """Put the restart annotation on a pod, on behalf of one that stood on the Cluster."""

    pod: str
    value: str


@dataclass(frozen=True, slots=True)
class UnmarkCluster:
    """Remove the restart annotation from the Cluster: every pod bears it now."""


@dataclass(frozen=True, slots=True)
class Tell:
    """An Event on the Cluster."""

    reason: str
    message: str
    warning: bool = False


BrokerAction: TypeAlias = (
    CordonBroker | UncordonBroker | DrainBroker | UndrainBroker | UnregisterBroker | AlterConfig
)
"""What the brokers are asked."""
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
    | Tell
)


@dataclass(frozen=True, slots=True)
class RestartRefusal:
    """The brokers gave no permit."""

    broker: int
    message: str
    partitions: tuple[str, ...] = ()
    """Partitions that forbid the restart; none if another restart has the permit."""


@dataclass(slots=True, kw_only=True)
class Outcomes:
    """Collected while the orders are carried out; nothing of it stops the orders that follow."""

    restarted: list[RestartBroker] = field(default_factory=list)
    refusals: list[RestartRefusal] = field(default_factory=list)
    refused_resizes: list[str] = field(default_factory=list)
    """Sentences of the API server on claims that may not grow."""
    refused_objects: list[str] = field(default_factory=list)
    """Sentences of the API server on objects that it does not take."""
    refused_calls: list[str] = field(default_factory=list)
    """Sentences of the brokers on what they do not do."""
    unavailable: str = ""
    """Why the brokers could not be asked something after all."""
