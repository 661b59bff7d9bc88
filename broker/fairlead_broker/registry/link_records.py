"""The values of the keys under `meta/links/`: links, which mirror topics of another cluster (rule L1).

Credentials for the source are files of each broker, and are never stored here. The module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec

from fairlead_api.identifiers import TimestampUs
from fairlead_broker.registry.records import ConfigScalar, Entry, Positive, Record


class LinkState(StrEnum):
    """State of a link that an operator sets."""

    RUNNING = "running"
    PAUSED = "paused"
    """The mirrors of the link fetch nothing."""


class NamePatterns(Entry, frozen=True, kw_only=True):
    """Names that a link includes: each matches a pattern of `include`, and no pattern of `exclude`."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


class LinkSource(Entry, frozen=True, kw_only=True):
    """Cluster from which a link copies."""

    bootstrap: tuple[str, ...]
    """Base URLs of brokers of the source."""
    cluster_id: str
    """Id of the source, learned when the link was created. Another cluster at the same addresses is refused."""


class LinkPolicies(Entry, frozen=True, kw_only=True):
    """Reactions of mirrors to losses of the source."""

    truncated: str = "follow"
    """`follow`: drop records that the source lost. `stop`: stop the partition."""
    expired: str = "skip"
    """`skip`: continue after records that the source deleted before they were copied. `stop`: stop the partition."""
    recreated: str = "stop"
    """`stop`: stop a mirror whose topic was deleted and created again in the source. `replace`: delete the mirror, and
    mirror the new topic.
    """
    log_start: str = "source"
    """`source`: the log start of a mirror follows the source's. `own`: the mirror deletes records by its own retention,
    and records that were deleted on request in the source.
    """


class LinkRecord(Record, frozen=True, kw_only=True):
    """Value of `meta/links/<name>`."""

    nested: ClassVar[Mapping[str, type[Entry]]] = {
        "source": LinkSource,
        "topics": NamePatterns,
        "groups": NamePatterns,
        "policies": LinkPolicies,
    }

    source: LinkSource
    topics: NamePatterns
    groups: NamePatterns = NamePatterns()
    acls: bool = False
    """Whether the source's ACLs on the mirrored topics and the copied groups are copied."""
    prefix: str = ""
    """Text before the name of each mirror."""
    config: dict[str, ConfigScalar] = msgspec.field(default_factory=dict)
    """Configuration of each mirror that replaces the source's."""
    replication_factor: Positive | None = None
    """Replication factor of each mirror, or None for the default of this cluster."""
    state: LinkState = LinkState.RUNNING
    policies: LinkPolicies = LinkPolicies()
    bytes_per_second: Positive | None = None
    """Maximum number of bytes that this cluster fetches each second, or None for no limit."""
    acknowledgements: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of times that an operator let stopped mirrors continue."""
    created_us: TimestampUs
    changed_us: TimestampUs
