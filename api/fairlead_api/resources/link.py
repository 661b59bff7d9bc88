"""Custom resource Link: mirrors of topics of another cluster, and their promotion."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field

from fairlead_api.resources.cluster_security import NamePattern
from fairlead_api.resources.cluster_status import Conditions
from fairlead_api.resources.quantities import Rate
from fairlead_api.resources.resource import Part, Resource
from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes, rules
from fairlead_api.resources.texts import ConfigMap, ObjectName, ShortText
from fairlead_api.resources.topic import REPLICAS_MAX

NAME_LENGTH_MAX: Final = 63
"""Maximum length of a Link's name, which is the beginning of keys in a Secret."""
ADDRESSES_MAX: Final = 20
PATTERNS_MAX: Final = 100

LinkState: TypeAlias = Literal["Running", "Paused"]
PromotionMode: TypeAlias = Literal["Planned", "Failover"]

SourceUrl = Annotated[
    str,
    kubernetes(
        Rule(
            r"self.matches('^https?://[^/?#@\\s]+/?$')",
            "the base URL of a broker, such as https://broker.example:9520",
        ),
        maxLength=512,
    ),
]
"""Base URL of a broker of the source."""
Patterns = Annotated[tuple[NamePattern, ...], kubernetes(maxItems=PATTERNS_MAX)]
"""Patterns of names, each a name, a prefix that ends in `*`, or `*`."""


class LinkClusterReference(Part):
    """The Cluster that receives."""

    name: ObjectName
    """Name of the Cluster, which is in the namespace of the Link."""


class SecretReference(Part):
    """A Secret in the namespace of the Link."""

    name: ObjectName
    """Name of the Secret."""


class LinkSource(Part):
    """The cluster whose topics are mirrored."""

    bootstrap: Annotated[tuple[SourceUrl, ...], kubernetes(minItems=1, maxItems=ADDRESSES_MAX)]
    """Base URLs of brokers of the source. The addresses can be changed, the cluster behind them cannot."""
    credentials_secret_ref: SecretReference | None = None
    """Secret with the credentials for the source: `token` with an API token, or `tls.crt` and `tls.key` with a client \
certificate. By default the link calls the source without credentials."""
    ca_secret_ref: SecretReference | None = None
    """Secret whose `ca.crt` has the authorities of the source's certificates; by default the credentials' Secret, and \
without `ca.crt` the authorities of the system."""


class LinkPatterns(Part):
    """Names that match a pattern of `include` and no pattern of `exclude`."""

    include: Patterns = ()
    """Names, prefixes that end in `*`, or `*`."""
    exclude: Patterns = ()
    """Names, prefixes that end in `*`, or `*`, which are left out."""


class LinkPolicies(Part):
    """Reactions of mirrors to losses and deletions of the source."""

    truncated: Literal["Follow", "Stop"] = "Follow"
    """Follow: a mirror drops records that the source lost. Stop: the partition stops."""
    expired: Literal["Skip", "Stop"] = "Skip"
    """Skip: a mirror continues after records that the source deleted before they were copied. Stop: the partition \
stops."""
    recreated: Literal["Stop", "Replace"] = "Stop"
    """Stop: the mirror of a topic that was deleted and created again in the source stops, and keeps its records. \
Replace: the mirror is deleted, and the new topic is mirrored."""
    log_start: Literal["Source", "Own"] = "Source"
    """Source: records that the source deletes are deleted from a mirror. Own: a mirror keeps them until its own \
retention deletes them; records that are deleted on request in the source are deleted all the same."""


class LinkPromotion(Part):
    """Mirrors that accept records."""

    topics: Annotated[tuple[NamePattern, ...], kubernetes(minItems=1, maxItems=PATTERNS_MAX)]
    """Mirrors, by name or prefix; `*` for every mirror of the Link."""
    mode: PromotionMode = "Planned"
    """Planned: the source first hands the topics over, and no record is lost. Failover: mirrors that the source does \
not hand over within five seconds are promoted without it, and records that were not copied are lost."""
    confirm: ShortText | None = None
    """Name of the Link, which a failover needs."""


class LinkSpec(Part):
    """Desired state of the Link."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "self.clusterRef == oldSelf.clusterRef",
                "clusterRef cannot be changed: create another Link",
                ".clusterRef",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                "has(self.prefix) == has(oldSelf.prefix) && (!has(self.prefix) || self.prefix == oldSelf.prefix)",
                "prefix cannot be changed, because mirrors have names with the prefix: create another Link",
                ".prefix",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                "has(self.topics.include) && self.topics.include.size() > 0",
                "topics.include must have a pattern",
                ".topics.include",
            ),
        )
    )

    cluster_ref: LinkClusterReference
    """The Cluster that receives. The reference cannot be changed."""
    source: LinkSource
    """The cluster whose topics are mirrored."""
    topics: LinkPatterns
    """Topics of the source that are mirrored. A topic that no longer matches stays a mirror."""
    groups: LinkPatterns = LinkPatterns()
    """Consumer groups of the source whose committed offsets are copied; by default none."""
    acls: bool = False
    """Whether the ACLs of the source on the mirrored topics and the copied groups are copied. The source then decides \
which callers the copies allow."""
    prefix: Annotated[str, kubernetes(maxLength=100, minLength=1, pattern="^[a-zA-Z0-9._-]+$")] | None = None
    """Text before the name of each mirror, which cannot be changed."""
    config: ConfigMap = Field(default_factory=dict)
    """Configuration of each mirror that replaces the source's."""
    replication_factor: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | None = None
    """Replicas of each mirror that is created from now on; by default the default of the Cluster."""
    bytes_per_second: Rate | None = None
    """Maximum number of bytes per second that all brokers together copy, such as 20Mi; unlimited by default."""
    policies: LinkPolicies = LinkPolicies()
    """Reactions of mirrors to losses of the source."""
    state: LinkState = "Running"
    """Paused: the mirrors fetch nothing."""
    promote: LinkPromotion | None = None
    """Mirrors that accept records. A promoted topic stays promoted when the field is removed."""


class LinkTopics(Part):
    """Numbers of topics of the Link by state."""

    mirroring: int = 0
    """Mirrors that follow the source, and mirrors that are being promoted."""
    promoted: int = 0
    """Topics that were promoted."""
    blocked: int = 0
    """Topics of the source that cannot be mirrored."""
    stopped: int = 0
    """Mirrors with a partition that copies nothing until an operator acts."""


class LinkStatus(Part):
    """Observed state of the Link."""

    observed_generation: int | None = None
    """Generation of the spec for which the status was written."""
    conditions: Conditions = ()
    """Conditions; the conditions reference explains each type and reason."""
    source_cluster_id: ShortText | None = None
    """Id of the source, which was learned when the link was created."""
    topics: LinkTopics | None = None
    """Numbers of topics by state."""
    lag_records: int | None = None
    """Records that the mirror with the greatest lag has not copied; absent while a lag is unknown."""
    lag_seconds: int | None = None
    """Seconds since the mirror with the greatest lag had every record of the source; absent while a lag is unknown."""


class Link(Resource):
    """Mirrors of topics of another Fairlead cluster."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                f"self.metadata.name.size() <= {NAME_LENGTH_MAX}",
                f"the name of a Link must have at most {NAME_LENGTH_MAX} characters",
                ".metadata.name",
            ),
            Rule(
                "!has(self.spec.promote) || self.spec.promote.mode != 'Failover' || "
                "(has(self.spec.promote.confirm) && self.spec.promote.confirm == self.metadata.name)",
                "a failover may lose records: confirm must be the name of the Link",
                ".spec.promote.confirm",
            ),
        )
    )

    spec: LinkSpec
    """Desired state of the Link."""
    status: LinkStatus = LinkStatus()
    """Observed state of the Link."""
