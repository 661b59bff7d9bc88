"""The custom resource Topic: one topic of a Cluster. The resource is the source; the topic follows it."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from fairlead_api.bodies.requests import PARTITIONS_MAX
from fairlead_api.identifiers import NAME_LENGTH_MAX
from fairlead_api.resources.cluster import DeletionPolicy
from fairlead_api.resources.cluster_status import Conditions
from fairlead_api.resources.resource import Part, Resource
from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes, rules
from fairlead_api.resources.texts import (
    CONFIG_KEYS_MAX,
    ConfigKeyName,
    ConfigMap,
    NamespaceName,
    ObjectName,
    ShortText,
    TopicName,
)

REPLICAS_MAX = 128


class ClusterReference(Part):
    """The Cluster that has the topic."""

    name: ObjectName
    """Name of the Cluster."""
    namespace: NamespaceName | None = None
    """Its namespace, if it is another one; the Cluster then has to list this one in topicNamespaces."""


class TopicSpec(Part):
    """What the topic is to be."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
                "a topic cannot be renamed: make another Topic",
                ".name",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                "!has(self.config) || !has(self.unmanagedConfig) || "
                "self.unmanagedConfig.all(key, !(key in self.config))",
                "a key is either in config or in unmanagedConfig",
                ".unmanagedConfig",
            ),
        )
    )

    cluster_ref: Annotated[
        ClusterReference,
        kubernetes(
            Rule(
                "self == oldSelf",
                "clusterRef cannot be changed: make another Topic",
                reason=RuleReason.FORBIDDEN,
            )
        ),
    ]
    """The Cluster that has the topic. It cannot be changed."""
    name: TopicName | None = None
    """Name of the topic, if it is another one than the resource's. It cannot be changed."""
    partitions: Annotated[
        int,
        Field(ge=1, le=PARTITIONS_MAX),
        kubernetes(
            Rule(
                "self >= oldSelf",
                "partitions cannot be taken away: their number only grows",
                reason=RuleReason.FORBIDDEN,
            )
        ),
    ] = 1
    """Number of partitions. It can be raised, never lowered; keys then go to other partitions than before."""
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | None = None
    """Replicas of each partition; without it as the cluster's default.replication.factor says when the topic is \
made. A change moves data, with its progress in status.reassignment."""
    config: ConfigMap = Field(default_factory=dict)
    """Configuration by Kafka's keys, always as strings. A key that is not here has its default; a value that is \
changed in the cluster by other means is set back."""
    unmanaged_config: Annotated[
        tuple[ConfigKeyName, ...],
        kubernetes(**{"maxItems": CONFIG_KEYS_MAX, "x-kubernetes-list-type": "set"}),
    ] = ()
    """Keys that others manage: the operator neither reads nor writes them."""
    deletion_policy: DeletionPolicy = "Delete"
    """What happens to the topic and its data when the resource is deleted."""


class Reassignment(Part):
    """Replicas that are being moved."""

    partitions_total: int
    """Partitions whose replicas were to change."""
    partitions_left: int
    """Partitions that are not done."""


class TopicStatus(Part):
    """What the operator has seen and done last."""

    observed_generation: int | None = None
    """The generation of the spec that this status answers to."""
    conditions: Conditions = ()
    """Conditions; the reference of conditions explains each type and reason."""
    topic_name: ShortText | None = None
    """Name of the topic."""
    topic_id: ShortText | None = None
    """Id of the topic: another id means that the topic was deleted and created again."""
    partitions: int | None = None
    """Partitions that the topic has."""
    replicas: int | None = None
    """Replicas that every partition has: the smallest number."""
    reassignment: Reassignment | None = None
    """Replicas that are being moved."""


class Topic(Resource):
    """A topic of a Fairlead cluster."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                f"has(self.spec.name) || self.metadata.name.size() <= {NAME_LENGTH_MAX}",
                f"a topic's name has at most {NAME_LENGTH_MAX} characters: give spec.name",
                ".metadata.name",
            )
        )
    )

    spec: TopicSpec
    """What the topic is to be."""
    status: TopicStatus = TopicStatus()
    """What the operator has seen and done last."""

    @property
    def topic_name(self) -> str:
        """Name of the topic in its cluster."""
        return self.spec.name or self.metadata.name

    @property
    def cluster_namespace(self) -> str:
        """Namespace of the Cluster that has the topic."""
        return self.spec.cluster_ref.namespace or self.metadata.namespace
