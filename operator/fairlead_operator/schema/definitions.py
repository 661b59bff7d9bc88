"""Custom resource definitions of Fairlead, as manifests and as YAML text.

A definition consists of the kind's names, the structural schema of its model, the printer columns and the status
subresource. There is no scale subresource, since the paths of a scale subresource cannot point into the list of pools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import yaml
from pydantic import JsonValue  # noqa: TC002 - a top-level import shows the dependency

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.condition_definitions import ConditionName, ResourceKind
from fairlead_api.resources.etcd_backup import EtcdBackup
from fairlead_api.resources.link import Link
from fairlead_api.resources.ready_conditions import NOT_RECONCILED, NOT_RECONCILED_MESSAGE
from fairlead_api.resources.rebalance import Rebalance
from fairlead_api.resources.resource import CATEGORY, GROUP, VERSION, Resource
from fairlead_api.resources.topic import Topic
from fairlead_api.resources.user import User
from fairlead_operator.schema.structural import Schema, structural_schema

HEADER: Final = (
    "# Generated from the models in api/fairlead_api/resources by docs/generate/definitions.py; edit those.\n"
)
EPOCH: Final = "1970-01-01T00:00:00Z"
"""Transition time of a condition that the operator has not set yet."""


@dataclass(frozen=True, slots=True)
class Column:
    """One printer column in the output of `kubectl get`."""

    name: str
    path: str
    """JSON path of the column's value."""
    type: str = "string"
    description: str = ""
    priority: int = 0
    """Priority of the column. Columns with priority 0 are always shown, columns with priority 1 only with `--output
    wide`."""

    def manifest(self) -> Schema:
        """Return the manifest of the column, which is part of a definition."""
        words: Schema = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.description:
            words["description"] = self.description
        if self.priority:
            words["priority"] = self.priority
        return words


@dataclass(frozen=True, slots=True)
class Definition:
    """Custom resource definition of one kind: its names, its model and its printer columns."""

    kind: ResourceKind
    plural: str
    short_name: str
    model: type[Resource]
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        """Name of the definition, which is also the name of its file."""
        return f"{self.plural}.{GROUP}"

    def schema(self) -> Schema:
        """Return the schema of the kind in the format that the API server expects."""
        whole = structural_schema(self.model)
        fields = cast("dict[str, Schema]", whole["properties"])
        # The operator sets all conditions; the API server only adds the default condition before the first pass.
        status = cast("Schema", _without_defaults(fields["status"]))
        status["default"] = {"conditions": [_not_reconciled()]}
        return {
            **whole,
            "required": ["spec"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                # Validation rules can refer to the name only if the schema declares the name.
                "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
                "spec": fields["spec"],
                "status": status,
            },
        }

    def manifest(self) -> Schema:
        """Return the manifest of the definition."""
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.name},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {
                    "kind": str(self.kind),
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": str(self.kind).lower(),
                    "shortNames": [self.short_name],
                    "categories": [CATEGORY],
                },
                "versions": [
                    {
                        "name": VERSION,
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": self.schema()},
                        "subresources": {"status": {}},
                        "additionalPrinterColumns": [column.manifest() for column in self.columns],
                    }
                ],
            },
        }

    def text(self) -> str:
        """Return the content of the definition's YAML file."""
        body = yaml.dump(self.manifest(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
        return f"{HEADER}{body}"


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes repeated parts in full, since a definition without anchors is easier to read."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True, so that no value is written as a YAML alias."""
        return True


def _without_defaults(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_without_defaults(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {word: _without_defaults(each) for word, each in value.items() if word != "default"}


def _not_reconciled() -> JsonValue:
    return {
        "type": str(ConditionName.READY),
        "status": "Unknown",
        "reason": NOT_RECONCILED,
        "message": NOT_RECONCILED_MESSAGE,
        "lastTransitionTime": EPOCH,
    }


def _of_ready(field: str) -> str:
    return f'.status.conditions[?(@.type=="{ConditionName.READY}")].{field}'


_READY: Final = Column("Ready", _of_ready("status"), description="Status of the condition Ready")
_REASON: Final = Column(
    "Reason", _of_ready("reason"), description="Reason for the status of the condition Ready"
)
_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")

CLUSTERS: Final = Definition(
    ResourceKind.CLUSTER,
    "clusters",
    "flc",
    Cluster,
    (
        _READY,
        Column(
            "Brokers",
            ".status.brokers.summary",
            description="Numbers of ready and desired brokers",
        ),
        Column("Version", ".status.version", description="The release that all brokers run"),
        _REASON,
        _AGE,
    ),
)
TOPICS: Final = Definition(
    ResourceKind.TOPIC,
    "topics",
    "flt",
    Topic,
    (
        _READY,
        Column("Partitions", ".spec.partitions", "integer"),
        Column("Replicas", ".status.replicas", "integer", "Number of replicas of every partition"),
        _REASON,
        _AGE,
        Column("Cluster", ".spec.clusterRef.name", priority=1),
    ),
)
REBALANCES: Final = Definition(
    ResourceKind.REBALANCE,
    "rebalances",
    "flr",
    Rebalance,
    (
        _READY,
        Column("State", ".status.state", description="State of the Rebalance"),
        Column(
            "Moved",
            ".status.progress.summary",
            description="Numbers of moved partitions and of all partitions",
        ),
        _REASON,
        _AGE,
        Column("Cluster", ".spec.clusterRef.name", priority=1),
        Column("Mode", ".spec.mode", priority=1),
    ),
)
ETCD_BACKUPS: Final = Definition(
    ResourceKind.ETCD_BACKUP,
    "etcdbackups",
    "flb",
    EtcdBackup,
    (
        _READY,
        Column("Last", ".status.lastSnapshot.time", description="Time of the newest snapshot"),
        Column("Bytes", ".status.lastSnapshot.bytes", "integer", "Size of the newest snapshot"),
        _REASON,
        _AGE,
        Column("Cluster", ".spec.clusterRef.name", priority=1),
        Column("Schedule", ".spec.schedule", priority=1),
    ),
)
USERS: Final = Definition(
    ResourceKind.USER,
    "users",
    "flu",
    User,
    (
        _READY,
        Column("Principal", ".status.principal", description="Principal of the User"),
        Column("Expires", ".status.expiresAt", description="End of the token in the Secret"),
        _REASON,
        _AGE,
        Column("Cluster", ".spec.clusterRef.name", priority=1),
    ),
)
LINKS: Final = Definition(
    ResourceKind.LINK,
    "links",
    "fll",
    Link,
    (
        _READY,
        Column("Topics", ".status.topics.mirroring", "integer", "Number of mirrors"),
        Column("Lag", ".status.lagRecords", "integer", "Records of the greatest lag"),
        Column("Seconds", ".status.lagSeconds", "integer", "Seconds of the greatest lag"),
        _REASON,
        _AGE,
        Column("Cluster", ".spec.clusterRef.name", priority=1),
        Column("Source", ".status.sourceClusterId", description="Id of the source", priority=1),
    ),
)
DEFINITIONS: Final = (CLUSTERS, TOPICS, USERS, REBALANCES, ETCD_BACKUPS, LINKS)
