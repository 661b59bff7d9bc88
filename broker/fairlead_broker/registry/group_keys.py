"""The keys of one consumer group: how they are built and what a key found in the store is.

For the coordinator of a group and whoever lists groups. Outside of what is mirrored (protocol section 5). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote

from fairlead_api.identifiers import TopicId
from fairlead_broker.registry.group_records import OFFSETS_PER_KEY
from fairlead_broker.registry.keys import Keys, encode_name

LAST = "\x7f"
"""Sorts after every character of a key that is written."""


@dataclass(frozen=True, slots=True)
class FoundCoordinator:
    """`coordinator`."""


@dataclass(frozen=True, slots=True)
class FoundState:
    """`state`."""


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """`targets/<topic id>`."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class FoundMember:
    """`members/<member id>`."""

    member_id: str


@dataclass(frozen=True, slots=True)
class FoundOffsets:
    """`offsets/<topic id>/<partition div 64>`."""

    topic_id: TopicId
    block: int


FoundGroupKey: TypeAlias = FoundCoordinator | FoundState | FoundTarget | FoundMember | FoundOffsets


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """Builds and reads the keys of the group with this name.

    Building raises `ValueError` for a name that takes more than 255 bytes percent-encoded, or none.
    """

    keys: Keys
    group: str

    @property
    def prefix(self) -> str:
        """What every key of the group begins with."""
        return f"{all_groups(self.keys)}{encode_name(self.group)}/"

    @property
    def coordinator(self) -> str:
        """Key of the `CoordinatorRecord`."""
        return f"{self.prefix}coordinator"

    @property
    def state(self) -> str:
        """Key of the `GroupRecord`."""
        return f"{self.prefix}state"

    @property
    def targets(self) -> str:
        """Prefix of all targets."""
        return f"{self.prefix}targets/"

    @property
    def members(self) -> str:
        """Prefix of all members."""
        return f"{self.prefix}members/"

    @property
    def offsets(self) -> str:
        """Prefix of all committed offsets."""
        return f"{self.prefix}offsets/"

    def target(self, topic_id: TopicId) -> str:
        """Key of a `TargetRecord`."""
        return f"{self.targets}{topic_id}"

    def member(self, member_id: str) -> str:
        """Key of a `MemberRecord`."""
        return f"{self.members}{encode_name(member_id)}"

    def offsets_of(self, topic_id: TopicId, partition: int) -> str:
        """Key of the `OffsetsRecord` that holds this partition."""
        return self.offsets_block(topic_id, partition // OFFSETS_PER_KEY)

    def offsets_block(self, topic_id: TopicId, block: int) -> str:
        """Key of the `OffsetsRecord` of partitions `64 * block` to `64 * block + 63`."""
        return f"{self.offsets}{topic_id}/{block}"

    def parse(self, key: str) -> FoundGroupKey | None:
        """Say what a key of this group is; None for one of a later release or of somebody else."""
        if not key.startswith(self.prefix):
            return None
        match key[len(self.prefix) :].split("/"):
            case ["coordinator"]:
                return FoundCoordinator()
            case ["state"]:
                return FoundState()
            case ["targets", topic_id] if topic_id:
                return FoundTarget(TopicId(topic_id))
            case ["members", member] if member:
                return FoundMember(unquote(member))
            case ["offsets", topic_id, block] if topic_id and block.isdecimal():
                return FoundOffsets(TopicId(topic_id), int(block))
            case _:
                return None


def all_groups(keys: Keys) -> str:
    """Return the prefix of all groups of the cluster."""
    return f"{keys.prefix}groups/"


def group_of(keys: Keys, key: str) -> str | None:
    """Return the group that a key belongs to; None outside of `groups/`."""
    prefix = all_groups(keys)
    if not key.startswith(prefix):
        return None
    name, slash, _ = key[len(prefix) :].partition("/")
    return unquote(name) if slash and name else None


def after_group(keys: Keys, group: str) -> str:
    """Return a key behind every key of a group and before those of the next one, for lists that skip."""
    return GroupKeys(keys, group).prefix + LAST
