"""What a group has to know about topics: which exist, how many partitions they have, and where these are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fairlead_api.identifiers import TopicId


@dataclass(frozen=True, slots=True)
class TopicShape:
    """A topic that may be consumed."""

    topic_id: TopicId
    partitions: int
    racks: tuple[frozenset[str], ...] = ()
    """For each partition the racks that keep a replica; empty when racks are not known."""


Topics: TypeAlias = Mapping[str, TopicShape]
"""Every ready topic by its name. While nothing has changed, give the same object: a turn compares by identity."""
