"""The keys of one cluster: functions that build keys and parse keys found in the store.

All readers and writers of the coordination store use these keys. Keys are permanent (protocol section 3). The
module is pure and depends only on names and numbers, not on values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

from fairlead_api.identifiers import BrokerId, PartitionIndex, ProducerId, TopicId
from fairlead_broker.registry.group_records import OFFSETS_PER_KEY

ROOT: Final = "/fairlead/"
NAME_BYTES_MAX: Final = 255
"""Maximum number of bytes of one percent-encoded name in a key."""


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """Key `meta/cluster`, which is created once."""


@dataclass(frozen=True, slots=True)
class BrokerKey:
    """Key `meta/brokers/<id>`, under the broker's lease. The create revision of the key is the broker epoch."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class ControllerKey:
    """Key `meta/controller`, under the controller's lease."""


@dataclass(frozen=True, slots=True)
class ControllerEpochKey:
    """Key `meta/controller-epoch`, which is kept when a controller's term ends.

    Each new controller increases the epoch.
    """


@dataclass(frozen=True, slots=True)
class TopicKey:
    """Key `meta/topics/<name>`."""

    name: str


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """Key `meta/partitions/<topic id>/<n>`."""

    topic_id: TopicId
    partition: PartitionIndex


@dataclass(frozen=True, slots=True)
class ClusterConfigKey:
    """Key `meta/config/cluster`."""


@dataclass(frozen=True, slots=True)
class BrokerConfigKey:
    """Key `meta/config/brokers/<id>`."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class DeletedTopicKey:
    """Key `meta/deleted/<topic id>`. Brokers delete the topic's folders only if this key exists."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class TokenKey:
    """Key `meta/security/tokens/<id>`."""

    token_id: str


@dataclass(frozen=True, slots=True)
class AclKey:
    """Key `meta/security/acls/<id>`."""

    acl_id: str


@dataclass(frozen=True, slots=True)
class QuotaKey:
    """Key `meta/security/quotas/<subject>`."""

    subject: str


@dataclass(frozen=True, slots=True)
class LinkKey:
    """Key `meta/links/<name>`."""

    name: str


MetaKey: TypeAlias = (
    ClusterKey
    | BrokerKey
    | ControllerKey
    | ControllerEpochKey
    | TopicKey
    | PartitionKey
    | ClusterConfigKey
    | BrokerConfigKey
    | DeletedTopicKey
    | TokenKey
    | AclKey
    | QuotaKey
    | LinkKey
)


@dataclass(frozen=True)
class Keys:
    """Builder and parser for the keys of the cluster with this name.

    Building a key raises `ValueError` if a name is empty or longer than 255 bytes when percent-encoded.
    """

    cluster_name: str

    def __post_init__(self) -> None:
        encode_name(self.cluster_name)

    @cached_property
    def prefix(self) -> str:
        """Prefix of every key of the cluster."""
        return f"{ROOT}{encode_name(self.cluster_name)}/"

    @cached_property
    def meta(self) -> str:
        """Prefix of the keys that every broker mirrors."""
        return f"{self.prefix}meta/"

    @property
    def cluster(self) -> str:
        """Key of the `ClusterRecord`."""
        return f"{self.meta}cluster"

    @property
    def brokers(self) -> str:
        """Prefix of all broker registrations."""
        return f"{self.meta}brokers/"

    @property
    def controller(self) -> str:
        """Key of the `ControllerRecord`."""
        return f"{self.meta}controller"

    @property
    def controller_epoch(self) -> str:
        """Key of the `ControllerEpochRecord`."""
        return f"{self.meta}controller-epoch"

    @property
    def restart_permit(self) -> str:
        """Key of the `RestartPermitRecord`, which is not mirrored."""
        return f"{self.meta}restart-permit"

    @property
    def topics(self) -> str:
        """Prefix of all topics."""
        return f"{self.meta}topics/"

    @property
    def cluster_config(self) -> str:
        """Key of the cluster's `ConfigRecord`."""
        return f"{self.meta}config/cluster"

    @property
    def deleted_topics(self) -> str:
        """Prefix of all tombstones of topics."""
        return f"{self.meta}deleted/"

    @property
    def producer_ids(self) -> str:
        """Key of the `ProducerIdsRecord`, which is not mirrored, like every key of `producers/`."""
        return f"{self.prefix}producers/next-id"

    @property
    def producer_names(self) -> str:
        """Prefix of all producer names."""
        return f"{self.prefix}producers/names/"

    def producer_name(self, name: str) -> str:
        """Return the key of a `ProducerNameRecord`."""
        return f"{self.producer_names}{encode_name(name)}"

    @property
    def transactions(self) -> str:
        """Prefix of the records of all transactional producers, which are not mirrored."""
        return f"{self.prefix}transactions/"

    def transaction(self, producer_id: ProducerId) -> str:
        """Return the key of a `TransactionRecord`."""
        return f"{self.transactions}{producer_id}"

    def broker(self, broker: BrokerId) -> str:
        """Return the key of a `BrokerRegistration`."""
        return f"{self.brokers}{broker}"

    def topic(self, name: str) -> str:
        """Return the key of a `TopicRecord`."""
        return f"{self.topics}{encode_name(name)}"

    def partitions(self, topic_id: TopicId) -> str:
        """Return the prefix of the keys of one topic's partitions."""
        return f"{self.meta}partitions/{topic_id}/"

    def partition(self, topic_id: TopicId, partition: PartitionIndex) -> str:
        """Return the key of a `PartitionRecord`."""
        return f"{self.partitions(topic_id)}{partition}"

    def broker_config(self, broker: BrokerId) -> str:
        """Return the key of one broker's `ConfigRecord`."""
        return f"{self.meta}config/brokers/{broker}"

    def deleted_topic(self, topic_id: TopicId) -> str:
        """Return the key of a `DeletedTopicRecord`."""
        return f"{self.deleted_topics}{topic_id}"

    def token(self, token_id: str) -> str:
        """Return the key of a `TokenRecord`."""
        return f"{self.meta}security/tokens/{encode_name(token_id)}"

    def acl(self, acl_id: str) -> str:
        """Return the key of an `AclRecord`."""
        return f"{self.meta}security/acls/{encode_name(acl_id)}"

    def quota(self, subject: str) -> str:
        """Return the key of a `QuotaRecord`."""
        return f"{self.meta}security/quotas/{encode_name(subject)}"

    def link(self, name: str) -> str:
        """Return the key of a `LinkRecord`."""
        return f"{self.meta}links/{encode_name(name)}"

    def parse(self, key: str) -> MetaKey | None:
        """Return the parsed key, or None for a key that is outside `meta/` or was written by a later release."""
        if not key.startswith(self.meta):
            return None
        return _parse_meta(key[len(self.meta) :].split("/"))


def encode_name(name: str) -> str:
    """Return a name percent-encoded in UTF-8, except ASCII letters, digits and `-._~`.

    Raises `ValueError` if the name is empty or longer than 255 bytes when encoded.
    """
    encoded = quote(name, safe="")
    if not 1 <= len(encoded) <= NAME_BYTES_MAX:
        msg = f"name {name!a} takes {len(encoded)} bytes in a key; 1 to {NAME_BYTES_MAX} are allowed"
        raise ValueError(msg)
    return encoded


def _parse_meta(parts: list[str]) -> MetaKey | None:
    match parts:
        case ["cluster"]:
            return ClusterKey()
        case ["controller"]:
            return ControllerKey()
        case ["controller-epoch"]:
            return ControllerEpochKey()
        case ["brokers", broker] if _is_number(broker):
            return BrokerKey(BrokerId(int(broker)))
        case ["topics", name] if name:
            return TopicKey(unquote(name))
        case ["partitions", topic_id, partition] if topic_id and _is_number(partition):
            return PartitionKey(TopicId(topic_id), PartitionIndex(int(partition)))
        case ["deleted", topic_id] if topic_id:
            return DeletedTopicKey(TopicId(topic_id))
        case ["security", "tokens", token_id] if token_id:
            return TokenKey(unquote(token_id))
        case ["security", "acls", acl_id] if acl_id:
            return AclKey(unquote(acl_id))
        case ["security", "quotas", subject] if subject:
            return QuotaKey(unquote(subject))
        case ["links", name] if name:
            return LinkKey(unquote(name))
        case ["config", "cluster"]:
            return ClusterConfigKey()
        case ["config", "brokers", broker] if _is_number(broker):
            return BrokerConfigKey(BrokerId(int(broker)))
        case _:
            return None


def _is_number(text: str) -> bool:
    """Return whether the text is `str(n)` for a number n >= 0, so that each number has exactly one key."""
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


LAST = "\x7f"
"""Character that sorts after every character that keys contain."""


@dataclass(frozen=True, slots=True)
class FoundCoordinator:
    """Key `coordinator` of a group."""


@dataclass(frozen=True, slots=True)
class FoundState:
    """Key `state` of a group."""


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """Key `targets/<topic id>` of a group."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class FoundMember:
    """Key `members/<member id>` of a group."""

    member_id: str


@dataclass(frozen=True, slots=True)
class FoundOffsets:
    """Key `offsets/<topic id>/<partition div 64>` of a group."""

    topic_id: TopicId
    block: int


@dataclass(frozen=True, slots=True)
class FoundClassic:
    """Key `classic` of a group."""


@dataclass(frozen=True, slots=True)
class FoundClassicMember:
    """Key `classic/members/<member id>` of a group."""

    member_id: str


FoundGroupKey: TypeAlias = (
    FoundCoordinator
    | FoundState
    | FoundTarget
    | FoundMember
    | FoundOffsets
    | FoundClassic
    | FoundClassicMember
)


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """Builder and parser for the keys of the group with this name.

    Building a key raises `ValueError` if a name is empty or longer than 255 bytes when percent-encoded.
    """

    keys: Keys
    group: str

    @property
    def prefix(self) -> str:
        """Prefix of every key of the group."""
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
        """Prefix of all targets of the group."""
        return f"{self.prefix}targets/"

    @property
    def members(self) -> str:
        """Prefix of all members in the group."""
        return f"{self.prefix}members/"

    @property
    def offsets(self) -> str:
        """Prefix of all committed offsets of the group."""
        return f"{self.prefix}offsets/"

    @property
    def classic(self) -> str:
        """Key of the `ClassicGroupRecord`."""
        return f"{self.prefix}classic"

    def classic_member(self, member_id: str) -> str:
        """Return the key of a `ClassicMemberRecord`."""
        return f"{self.classic}/members/{encode_name(member_id)}"

    def target(self, topic_id: TopicId) -> str:
        """Return the key of a `TargetRecord`."""
        return f"{self.targets}{topic_id}"

    def member(self, member_id: str) -> str:
        """Return the key of a `MemberRecord`."""
        return f"{self.members}{encode_name(member_id)}"

    def offsets_of(self, topic_id: TopicId, partition: int) -> str:
        """Return the key of the `OffsetsRecord` that contains this partition."""
        return self.offsets_block(topic_id, partition // OFFSETS_PER_KEY)

    def offsets_block(self, topic_id: TopicId, block: int) -> str:
        """Return the key of the `OffsetsRecord` of partitions `64 * block` to `64 * block + 63`."""
        return f"{self.offsets}{topic_id}/{block}"

    def parse(self, key: str) -> FoundGroupKey | None:
        """Return the parsed key, or None for a key of another group or a key written by a later release."""
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
            case ["classic"]:
                return FoundClassic()
            case ["classic", "members", member] if member:
                return FoundClassicMember(unquote(member))
            case _:
                return None


def all_groups(keys: Keys) -> str:
    """Return the prefix of all groups in the cluster."""
    return f"{keys.prefix}groups/"


def group_of(keys: Keys, key: str) -> str | None:
    """Return the group that a key belongs to, or None for a key outside `groups/`."""
    prefix = all_groups(keys)
    if not key.startswith(prefix):
        return None
    name, slash, _ = key[len(prefix) :].partition("/")
    return unquote(name) if slash and name else None


def after_group(keys: Keys, group: str) -> str:
    """Return a key between the last key of a group and the first key of the next group, to continue a list."""
    return GroupKeys(keys, group).prefix + LAST
