"""What a condition is: its type, its reasons, and which of its statuses is the good one.

The types of which the catalogue of conditions is made. Must not know any single reason.
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
    WARNING = "Warning"
    RECONCILIATION_PAUSED = "ReconciliationPaused"


class ResourceKind(StrEnum):
    """Kinds of custom resources, by the words of their manifests."""

    CLUSTER = "Cluster"
    TOPIC = "Topic"


class Polarity(StrEnum):
    """Which status of a condition is the good one."""

    GOOD_WHEN_TRUE = "good when True"
    """Always there; False or Unknown deserves a look."""
    BAD_WHEN_TRUE = "bad when True"
    """Present only while it is True, which asks for an action."""
    NEUTRAL = "neither good nor bad"
    """There only while it holds: it explains what is seen."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a condition has its status, as one word."""

    name: str
    statuses: tuple[str, ...]
    """The statuses with which this reason goes."""
    meaning: str
    next_step: str
    """What a person does; starts with "Nothing" where nothing is to be done."""
    kinds: tuple[ResourceKind, ...] = (ResourceKind.CLUSTER, ResourceKind.TOPIC)


@dataclass(frozen=True, slots=True)
class ConditionType:
    """One type of condition."""

    name: ConditionName
    polarity: Polarity
    meaning: str
    reasons: tuple[Reason, ...]
    kinds: tuple[ResourceKind, ...] = (ResourceKind.CLUSTER, ResourceKind.TOPIC)


CLUSTER_ONLY: Final = (ResourceKind.CLUSTER,)
TOPIC_ONLY: Final = (ResourceKind.TOPIC,)
