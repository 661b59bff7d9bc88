"""Choice of the topics of a source that a link mirrors, and the reasons why topics are blocked (rules L5, L6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fairlead_api.identifiers import TopicId
from fairlead_api.patterns import matches
from fairlead_broker.registry.link_records import NamePatterns
from fairlead_broker.registry.records import MirrorOf, MirrorState


class BlockReason(StrEnum):
    """Reason why a link cannot mirror a topic now."""

    NAME_TAKEN = "name_taken"
    """The cluster has another topic with the name."""
    ID_TAKEN = "id_taken"
    """The cluster already has the topic: as its own, or as the mirror of another link."""
    PROMOTED = "promoted"
    """The topic was a mirror, and was promoted in this cluster."""
    DELETED_HERE = "deleted_here"
    """The topic was deleted in this cluster less than 14 days ago."""
    CYCLE = "cycle"
    """The topic of the source is a mirror of a topic that comes from this cluster."""
    REFUSED = "refused"
    """The topic cannot be created, for instance because too few brokers take new replicas."""


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic of the source."""

    name: str
    topic_id: TopicId
    lineage: Sequence[str] = ()
    """Ids of the clusters through which the source received the topic; empty for the source's own topic."""


@dataclass(frozen=True, slots=True)
class LocalTopics:
    """Topics of the link's cluster, and its id."""

    cluster_id: str
    names: Collection[str]
    topic_ids: Collection[TopicId]
    mirrored: Collection[TopicId]
    """Topic ids of the mirrors of this link."""
    promoted: Collection[TopicId]
    """Topic ids of topics that were promoted in this cluster."""
    deleted: Collection[TopicId]
    """Topic ids with a tombstone."""


def is_recreated(topic: SourceTopic, mirror: MirrorOf | None, link: str) -> bool:
    """Return whether the source created a topic again whose previous records a mirror with the same name has.

    `mirror`: origin of the local topic with another topic id and the name that the mirror of `topic` would have. A
    mirror whose promotion has begun keeps its records.
    """
    return (
        mirror is not None
        and mirror.link == link
        and mirror.source_name == topic.name
        and mirror.state is MirrorState.MIRRORING
    )


def is_chosen(patterns: NamePatterns, name: str) -> bool:
    """Return whether a link's patterns include a name."""
    return any(matches(pattern, name) for pattern in patterns.include) and not any(
        matches(pattern, name) for pattern in patterns.exclude
    )


def blocked(topic: SourceTopic, name: str, local: LocalTopics) -> BlockReason | None:
    """Return why a topic cannot be mirrored under a name; None if it can be, or already is."""
    if topic.topic_id in local.mirrored:
        return None
    if topic.topic_id in local.promoted:
        return BlockReason.PROMOTED
    if local.cluster_id in topic.lineage:
        return BlockReason.CYCLE
    if topic.topic_id in local.topic_ids:
        return BlockReason.ID_TAKEN
    if name in local.names:
        return BlockReason.NAME_TAKEN
    if topic.topic_id in local.deleted:
        return BlockReason.DELETED_HERE
    return None
