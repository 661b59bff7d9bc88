"""Types of offsets, epochs, ids and partitions, and checks of the names that callers choose.

Every package uses this module. The module must not create identifiers: other modules generate topic ids, and this
module only checks them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NewType
from urllib.parse import quote

from fairlead_api.excerpts import shortened, shown
from fairlead_api.problems import ProblemError

Offset = NewType("Offset", int)
"""Position of a record in its partition, assigned from 0 without gaps."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a leadership of a partition; the number increases by at least one with each new leader."""
BrokerEpoch = NewType("BrokerEpoch", int)
"""Incarnation of a broker: the create revision of its registration."""
BrokerId = NewType("BrokerId", int)
PartitionIndex = NewType("PartitionIndex", int)
TopicId = NewType("TopicId", str)
"""Id of a topic: a version 4 UUID as text, in lower case with hyphens."""
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)
"""Sequence number of a producer's record in one partition, which wraps from 2^31 - 1 to 0."""
Revision = NewType("Revision", int)
"""Revision of the coordination store, which increases with each transaction."""
TimestampUs = NewType("TimestampUs", int)
"""Microseconds since the Unix epoch, UTC."""

NAME_LENGTH_MAX: Final = 249
PARTITION_MAX: Final = 2**31 - 1
NAME_PATTERN: Final = r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$"
"""Rule of `is_name` as a regular expression for schemas."""
GROUP_NAME_PATTERN: Final = r"^(?!\.{1,2}$)[^\x00-\x1f\x7f]{1,249}$"
"""Regular expression for schemas that matches every name that `is_group_name` allows, and a few more."""
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_GROUP_NAME_RULE: Final = "printable characters, 1 to 249 when percent-encoded, and not '.' or '..'"
_NAME_RULE: Final = "1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', and not '.' or '..'"
TOPIC_ID_PATTERN: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
_TOPIC_ID: Final = re.compile(TOPIC_ID_PATTERN)


class Acks(Enum):
    """Condition that must hold before a produce call is answered."""

    NONE = "0"
    """The batch has been validated."""
    LEADER = "1"
    """The leader has appended the batch."""
    ALL = "all"
    """The high watermark has passed the batch."""


@dataclass(frozen=True, slots=True, order=True)
class TopicIdPartition:
    """Partition identified by the topic id and the partition index; a recreated topic has a different id."""

    topic_id: TopicId
    partition: PartitionIndex

    def __str__(self) -> str:
        """Return the path of the partition's folder: `<topic id>/3`."""
        return f"{self.topic_id}/{self.partition}"


def check_topic_name(name: str) -> str:
    """Return the name if Kafka's rule for topics allows the name, else raise `invalid_topic_name`."""
    if is_name(name):
        return name
    raise ProblemError(
        "invalid_topic_name",
        f"topic name {shown(name)} is not allowed; allowed are {_NAME_RULE}",
        data={"topic": shortened(name)},
    )


def check_group_name(name: str) -> str:
    """Return the name of a group, member or producer if the name is allowed, else raise `invalid_group_name`."""
    if is_group_name(name):
        return name
    raise ProblemError(
        "invalid_group_name",
        f"name {shown(name)} is not allowed; allowed are {_GROUP_NAME_RULE}",
        data={"group": shortened(name)},
    )


def check_topic_id(text: str) -> TopicId:
    """Return the text as a topic id, or raise `malformed_request` if the text is not a lower-case version 4 UUID."""
    if _TOPIC_ID.fullmatch(text):
        return TopicId(text)
    raise ProblemError(
        "malformed_request",
        f"topic id {shown(text)} is not allowed; expected a version 4 UUID in lower case with hyphens",
        data={"parameter": "topic_id", "value": shortened(text)},
    )


def is_group_name(name: str) -> bool:
    """Return whether the rule for names of groups, members and producers allows a name.

    Kafka's clients choose these names freely, so the rule excludes only names that cannot be shown, that a URL cannot
    contain as a segment of its path, or that are too long for a key of the coordination store.
    """
    if is_name(name):
        return True
    return name.isprintable() and name not in ("", ".", "..") and len(quote(name, safe="")) <= NAME_LENGTH_MAX


def is_name(name: str) -> bool:
    """Return whether the rule for names of topics allows a name."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def collides(name: str, other: str) -> bool:
    """Return whether two topic names become equal in metric names, where '.' is replaced by '_' (Kafka's rule)."""
    return name != other and name.replace(".", "_") == other.replace(".", "_")
