"""Types of the catalogue of conditions: condition types, their reasons, and their desired status.

The module must not depend on any particular reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ConditionName(StrEnum):
    """Types of conditions."""

    READY = "Ready"
    PROGRESSING = "Progressing"
    INVALID_SPEC = "InvalidSpec"
    ROLL_BLOCKED = "RollBlocked"
    SCALE_DOWN_BLOCKED = "ScaleDownBlocked"
    STORAGE_BLOCKED = "StorageBlocked"
    ETCD_HEALTHY = "EtcdHealthy"
    CERTIFICATES_READY = "CertificatesReady"
    WARNING = "Warning"
    RECONCILIATION_PAUSED = "ReconciliationPaused"
    SOURCE_REACHABLE = "SourceReachable"
    TOPICS_BLOCKED = "TopicsBlocked"
    GAP = "Gap"
    PROMOTED = "Promoted"


class ResourceKind(StrEnum):
    """Kinds of custom resources, with the names in manifests."""

    CLUSTER = "Cluster"
    TOPIC = "Topic"
    REBALANCE = "Rebalance"
    ETCD_BACKUP = "EtcdBackup"
    USER = "User"
    LINK = "Link"


class Polarity(StrEnum):
    """Desired status of a condition."""

    GOOD_WHEN_TRUE = "good when True"
    """Condition that is always present, and needs attention while its status is False or Unknown."""
    BAD_WHEN_TRUE = "bad when True"
    """Condition that is present only while its status is True, and then requires an action."""
    NEUTRAL = "neither good nor bad"
    """Condition that explains the state of the object and requires no action."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason for a condition's status, as one word."""

    name: str
    statuses: tuple[str, ...]
    """Statuses that the condition can have with this reason."""
    meaning: str
    next_step: str
    """Recommended action; the text starts with "Nothing" if no action is required."""
    kinds: tuple[ResourceKind, ...] = tuple(ResourceKind)


@dataclass(frozen=True, slots=True)
class ConditionType:
    """Definition of a condition type."""

    name: ConditionName
    polarity: Polarity
    meaning: str
    reasons: tuple[Reason, ...]
    kinds: tuple[ResourceKind, ...] = tuple(ResourceKind)


USER_ONLY: Final = (ResourceKind.USER,)
CLUSTER_ONLY: Final = (ResourceKind.CLUSTER,)
TOPIC_ONLY: Final = (ResourceKind.TOPIC,)
REBALANCE_ONLY: Final = (ResourceKind.REBALANCE,)
MOVED: Final = (ResourceKind.TOPIC, ResourceKind.REBALANCE)
"""Kinds whose objects move partitions."""
IN_A_CLUSTER: Final = (*MOVED, ResourceKind.USER, ResourceKind.ETCD_BACKUP, ResourceKind.LINK)
"""Kinds whose objects belong to a Cluster."""
CALLING: Final = (*MOVED, ResourceKind.USER, ResourceKind.LINK)
"""Kinds whose objects need an answer from the brokers."""
LINK_ONLY: Final = (ResourceKind.LINK,)
BACKUP_ONLY: Final = (ResourceKind.ETCD_BACKUP,)
WITHOUT_BACKUPS: Final = (ResourceKind.CLUSTER, *MOVED, ResourceKind.USER)
