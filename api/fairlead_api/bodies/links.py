"""Bodies of the calls about links, which mirror topics of another cluster, and about topics that are handed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead_api.bodies.json_bodies import Request
from fairlead_api.bodies.metadata import Answer
from fairlead_api.bodies.requests import PARTITIONS_MAX, ReplicationFactor
from fairlead_api.configuration import ConfigInput
from fairlead_api.excerpts import shown
from fairlead_api.identifiers import check_topic_name
from fairlead_api.patterns import is_name_pattern
from fairlead_api.problems import ProblemError

ADDRESSES_MAX: Final = 20
PATTERNS_MAX: Final = 100

Url: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)]
Urls: TypeAlias = Annotated[list[Url], Meta(min_length=1, max_length=ADDRESSES_MAX)]
Pattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=249)]
BytesPerSecond: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
Patterns: TypeAlias = Annotated[list[Pattern], Meta(max_length=PATTERNS_MAX)]
LinkState: TypeAlias = Literal["running", "paused"]
Chosen: TypeAlias = Annotated[list[str], Meta(min_length=1, max_length=PARTITIONS_MAX)] | Literal["all"]
"""Names of mirrors, or every mirror of a link."""
PromotionMode: TypeAlias = Literal["planned", "failover"]
MirrorState: TypeAlias = Literal["blocked", "mirroring", "handing_over", "promoting", "promoted", "faulted"]


def _check_patterns(*patterns: str) -> None:
    for pattern in patterns:
        if not is_name_pattern(pattern):
            detail = f"{shown(pattern)} is not a name, a prefix followed by *, or *"
            raise ProblemError("invalid_link", detail, data={"field": "include or exclude"})


class NamePatterns(Request, frozen=True, kw_only=True):
    """Names that match a pattern of `include` and no pattern of `exclude`: a name, a prefix before `*`, or `*`."""

    include: Patterns = msgspec.field(default_factory=list)
    exclude: Patterns = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise `invalid_link` for a pattern that no name could match."""
        _check_patterns(*self.include, *self.exclude)


class LinkSource(Request, frozen=True, kw_only=True):
    """Cluster from which a link copies: base URLs of its brokers."""

    bootstrap: Urls

    def __post_init__(self) -> None:
        """Raise `invalid_link` for an address that is not a base URL."""
        check_urls(self.bootstrap)


class LinkPolicies(Request, frozen=True, kw_only=True):
    """Reactions of mirrors to losses and deletions of the source.

    `truncated` decides about records that the source lost after they were copied: `follow` drops them from the mirror,
    and `stop` stops the partition. `expired` decides about records that the source deleted before they were copied:
    `skip` continues after them, and `stop` stops the partition. `recreated` decides about a topic that was deleted
    and created again in the source: `stop` stops its mirror, and `replace` deletes the mirror and its records, and
    mirrors the new topic. `log_start` decides about records that the source deletes after they were copied: `source`
    deletes them from the mirror, and `own` keeps them until the retention of the mirror deletes them. Records that are
    deleted on request in the source are always deleted from the mirror.
    """

    truncated: Literal["follow", "stop"] = "follow"
    expired: Literal["skip", "stop"] = "skip"
    recreated: Literal["stop", "replace"] = "stop"
    log_start: Literal["source", "own"] = "source"


class CreateLinkRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Body of `POST /v1/links`. `groups` names the consumer groups whose offsets are copied; by default none.

    `acls` copies the source's ACLs on the mirrored topics and the copied groups, and needs `create` on `security`.
    """

    name: str
    source: LinkSource
    topics: NamePatterns
    groups: NamePatterns = NamePatterns()
    acls: bool = False
    prefix: Annotated[str, Meta(max_length=100)] = ""
    config: dict[str, ConfigInput] = msgspec.field(default_factory=dict)
    replication_factor: ReplicationFactor | None = None
    policies: LinkPolicies = LinkPolicies()
    bytes_per_second: BytesPerSecond | None = None

    def __post_init__(self) -> None:
        """Raise `invalid_topic_name` for a name that no link can have, and `invalid_link` without a topic."""
        check_topic_name(self.name)
        if self.prefix:
            check_topic_name(self.prefix)
        check_chosen_topics(self.topics.include)


class AlterNamePatterns(Request, frozen=True, kw_only=True):
    """Change to the patterns of a link. Each given list replaces the whole list of the link."""

    include: Patterns | UnsetType = UNSET
    exclude: Patterns | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Raise `invalid_link` for a pattern that no name could match."""
        _check_patterns(*(self.include or ()), *(self.exclude or ()))


class AlterLinkPolicies(Request, frozen=True, kw_only=True):
    """Change to the policies of a link."""

    truncated: Literal["follow", "stop"] | UnsetType = UNSET
    expired: Literal["skip", "stop"] | UnsetType = UNSET
    recreated: Literal["stop", "replace"] | UnsetType = UNSET
    log_start: Literal["source", "own"] | UnsetType = UNSET


class AlterLinkRequest(Request, frozen=True, kw_only=True):
    """Body of `PATCH /v1/links/{link}`, a merge patch: members that are left out stay as they are.

    Null resets a key of `config` or all keys, `replication_factor` to the default of the cluster, and
    `bytes_per_second` to no limit. The replication factor applies to mirrors that are created later. Mirrors whose
    topics no longer match stay mirrors. The name, the prefix and the source's cluster never change.
    """

    source: LinkSource | UnsetType = UNSET
    topics: AlterNamePatterns = AlterNamePatterns()
    groups: AlterNamePatterns = AlterNamePatterns()
    acls: bool | UnsetType = UNSET
    config: dict[str, ConfigInput] | None = msgspec.field(default_factory=dict)
    replication_factor: ReplicationFactor | UnsetType | None = UNSET
    policies: AlterLinkPolicies = AlterLinkPolicies()
    bytes_per_second: BytesPerSecond | UnsetType | None = UNSET


class PromoteRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/links/{link}:promote`: names of mirrors, or `all`.

    `planned` first hands the topics over: the source refuses records, and the mirror copies the rest. `failover` tries
    this for five seconds, then promotes without the source, and loses the records that were not copied.
    """

    topics: Chosen
    mode: PromotionMode = "planned"


class TakeBackRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/links/{link}:take-back`: names of mirrors whose hand-over is cancelled, or `all`."""

    topics: Chosen


class AdoptRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/links/{link}:adopt`: names of topics that become mirrors of their copies in the source."""

    topics: Annotated[list[str], Meta(min_length=1, max_length=PARTITIONS_MAX)]


class HandOverRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/topics/{topic}:hand-over`: the cluster that accepts the topic's records from now on."""

    cluster_id: Annotated[str, Meta(min_length=1, max_length=255)]
    bootstrap: Urls

    def __post_init__(self) -> None:
        """Raise `invalid_link` for an address that is not a base URL."""
        check_urls(self.bootstrap)


class HandedOverPartition(Answer, frozen=True, kw_only=True):
    """End of a partition that was handed over. Without `is_final`, the end may still move, and the call is repeated."""

    partition: int
    end_offset: int
    last_epoch: int | None
    """Leader epoch of the last record; null without records."""
    is_final: bool


class HandOverAnswer(Answer, frozen=True, kw_only=True):
    """Answer to `POST /v1/topics/{topic}:hand-over`."""

    partitions: list[HandedOverPartition]


class LinkDescription(Answer, frozen=True, kw_only=True):
    """A link. `source_problem` states why the source could not be reached, or null."""

    name: str
    source: LinkSource
    source_cluster_id: str
    topics: NamePatterns
    groups: NamePatterns
    acls: bool = False
    prefix: str
    config: dict[str, ConfigInput]
    replication_factor: int | None
    policies: LinkPolicies
    bytes_per_second: int | None
    state: LinkState
    mirrors: int
    """Number of topics that the link mirrors."""
    gaps: int = 0
    """Number of partitions with a gap that is not acknowledged."""
    source_problem: str | None = None


class MirrorGap(Answer, frozen=True, kw_only=True):
    """Offsets at which a mirror lacks records of the source, since the last acknowledgement of the link.

    The source had deleted the `skipped` records before they were copied. It lost the `truncated` records in an unclean
    election, after which the mirror dropped them.
    """

    first_offset: int
    end_offset: int
    """Offset after the last missing record."""
    skipped: int
    truncated: int


class MirrorPartition(Answer, frozen=True, kw_only=True):
    """Progress of a partition. Numbers are null while the source or the leader of the partition does not answer."""

    partition: int
    source_high_watermark: int | None
    high_watermark: int | None
    lag_records: int | None
    lag_seconds: float | None
    last_contact_seconds: float | None = None
    """Seconds since the last answer from the source."""
    gap: MirrorGap | None = None


class LinkTopic(Answer, frozen=True, kw_only=True):
    """A topic of the source that a link mirrors or is to mirror.

    `reason` states why a topic is blocked or faulted. The lags are those of the partition with the greatest lag.
    """

    topic: str
    topic_id: str
    source_topic: str
    state: MirrorState
    reason: str | None = None
    lag_records: int | None = None
    lag_seconds: float | None = None
    partitions: list[MirrorPartition] = msgspec.field(default_factory=list)


class LinkTail(Answer, frozen=True, kw_only=True):
    """File of a broker with records of a topic that the source of a link does not have, cut when it became a mirror."""

    topic: str
    broker: int
    partition: int
    first_offset: int
    """Offset at which the log was cut."""
    size_bytes: int
    path: str
    """Path on the broker's machine."""


def check_chosen_topics(include: Sequence[str]) -> None:
    """Raise `invalid_link` for a link that would mirror no topic."""
    if not include:
        raise ProblemError("invalid_link", "topics.include has no pattern", data={"field": "topics.include"})


def check_urls(urls: list[str]) -> None:
    """Raise `invalid_link` for an address that is not the base URL of a broker."""
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            detail = f"{shown(url)} is not a base URL such as http://broker.example:9520"
            raise ProblemError("invalid_link", detail, data={"field": "bootstrap"})
