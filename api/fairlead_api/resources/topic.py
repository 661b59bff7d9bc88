"""Custom resource Topic: one topic of a Cluster, which the operator changes to match the resource."""

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
    """The Cluster that the topic belongs to."""

    name: ObjectName
    """Name of the Cluster."""
    namespace: NamespaceName | None = None
    """Namespace of the Cluster; by default the namespace of the Topic. A Cluster in another namespace must list the \
Topic's namespace in topicNamespaces."""


class TopicSpec(Part):
    """Desired state of the topic."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
                "a topic cannot be renamed: create another Topic",
                ".name",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                "!has(self.config) || !has(self.unmanagedConfig) || "
                "self.unmanagedConfig.all(key, !(key in self.config))",
                "a key must not be in both config and unmanagedConfig",
                ".unmanagedConfig",
            ),
        )
    )

    cluster_ref: Annotated[
        ClusterReference,
        kubernetes(
            Rule(
                "self == oldSelf",
                "clusterRef cannot be changed: create another Topic",
                reason=RuleReason.FORBIDDEN,
            )
        ),
    ]
    """The Cluster that the topic belongs to. The reference cannot be changed."""
    name: TopicName | None = None
    """Name of the topic; by default the name of the resource. The name cannot be changed."""
    partitions: Annotated[
        int,
        Field(ge=1, le=PARTITIONS_MAX),
        kubernetes(
            Rule(
                "self >= oldSelf",
                "partitions cannot be removed: their number can only increase",
                reason=RuleReason.FORBIDDEN,
            )
        ),
    ] = 1
    """Number of partitions, which can be increased but not decreased. An increase assigns keys to different \
partitions."""
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | None = None
    """Number of replicas of each partition; by default the cluster's default.replication.factor when the topic is \
created. A change of the number moves data; status.reassignment shows the progress."""
    config: ConfigMap = Field(default_factory=dict)
    """Configuration of the topic: values of Kafka's configuration keys, always strings. A key that is not set has its \
default. A value that is changed in the cluster by other means is reset."""
    unmanaged_config: Annotated[
        tuple[ConfigKeyName, ...],
        kubernetes(**{"maxItems": CONFIG_KEYS_MAX, "x-kubernetes-list-type": "set"}),
    ] = ()
    """Keys that are managed by other means; the operator neither reads nor writes these keys."""
    deletion_policy: DeletionPolicy = "Delete"
    """Whether the topic and its data are deleted or retained when the resource is deleted."""


class Reassignment(Part):
    """Move of replicas in progress."""

    partitions_total: int
    """Number of partitions whose replicas change."""
    partitions_left: int
    """Number of partitions whose replicas have not changed yet."""


class TopicStatus(Part):
    """Observed state of the topic."""

    observed_generation: int | None = None
    """Generation of the spec for which the status was written."""
    conditions: Conditions = ()
    """Conditions; the conditions reference explains each type and reason."""
    topic_name: ShortText | None = None
    """Name of the topic."""
    topic_id: ShortText | None = None
    """Id of the topic, which changes when the topic is deleted and created again."""
    partitions: int | None = None
    """Number of partitions of the topic."""
    replicas: int | None = None
    """Smallest number of replicas of a partition."""
    reassignment: Reassignment | None = None
    """Move of replicas in progress."""


class Topic(Resource):
    """A topic of a Fairlead cluster."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                f"has(self.spec.name) || self.metadata.name.size() <= {NAME_LENGTH_MAX}",
                f"a topic's name must have at most {NAME_LENGTH_MAX} characters: set spec.name",
                ".metadata.name",
            )
        )
    )

    spec: TopicSpec
    """Desired state of the topic."""
    status: TopicStatus = TopicStatus()
    """Observed state of the topic."""

    @property
    def topic_name(self) -> str:
        """Name of the topic in its cluster."""
        return self.spec.name or self.metadata.name

    @property
    def cluster_namespace(self) -> str:
        """Namespace of the Cluster that the topic belongs to."""
        return self.spec.cluster_ref.namespace or self.metadata.namespace
