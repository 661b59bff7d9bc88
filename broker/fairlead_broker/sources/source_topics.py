"""Checks of topics that a source describes, before a name, an id or a number of the source is stored here.

A source is another cluster, so its answers are hostile until they are checked. The id of a topic is the name of a
folder on disks, and no broker could read a record with a wrong number again.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead_api.bodies.metadata import TopicDescription
from fairlead_api.bodies.requests import EpochNumber, PartitionCount, ReplicationFactor, TopicIdText
from fairlead_api.identifiers import check_topic_name
from fairlead_api.problems import ProblemError

ERAS_MAX = 2_048
"""Maximum number of promotions of a topic: each one takes a range of leader epochs."""
ClusterIdText = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class _Era(msgspec.Struct):
    epoch: EpochNumber
    cluster_id: ClusterIdText


class _Mirror(msgspec.Struct):
    lineage: Annotated[list[ClusterIdText], msgspec.Meta(max_length=100)]


class _Topic(msgspec.Struct):
    name: str
    topic_id: TopicIdText
    partitions: PartitionCount
    replication_factor: ReplicationFactor
    eras: Annotated[list[_Era], msgspec.Meta(max_length=ERAS_MAX)]
    mirror: _Mirror | None


def flaw_of(topic: TopicDescription) -> str | None:
    """Return why a described topic cannot be stored in this cluster; None for a sound description."""
    try:
        check_topic_name(topic.name)
        msgspec.convert(topic, _Topic, from_attributes=True)
    except (msgspec.ValidationError, ProblemError) as error:
        return str(error)
    return None
