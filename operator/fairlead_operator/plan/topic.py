"""Plan of a Topic: the actions that make the topic match its resource.

A pass of `reconcile` makes the plan and runs its actions in order. The plan is computed without I/O and is
level-triggered: the resource is compared with the brokers' answers, and every difference becomes a change. After
a crash at any point, equal facts produce an equal plan.

A configuration key is handled in one of three ways. A key with a value in the resource is set on the topic itself, even
if the cluster's default has the same value. A key without a value in the resource is reset to the default, except the
keys in `FIXED_BY_QUORUMS`. An unmanaged key is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead_api.configuration import (
    QUORUM_MODE,
    REPLICATION_MODE_KEY,
    TOPIC_KEYS,
    ConfigSource,
    stored_value,
)
from fairlead_api.problems import ProblemError
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.topic_observed import (
    LivePartition,
    LiveTopic,
    LiveTopics,
    WantedTopic,
    fewest_brokers,
)
from fairlead_operator.plan.topic_replicas import ReplicaChooser

MIN_ISR = "min.insync.replicas"
FIXED_BY_QUORUMS = frozenset({REPLICATION_MODE_KEY, "durability"})
"""Keys that a topic with a write quorum keeps from its creation. Brokers copy them from the cluster's configuration to
the topic, and refuse to reset them."""
MOVES_MAX = 20
"""Maximum number of partitions of one topic that move at the same time, since copying replicas competes with producers
for disks and network."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create the topic."""

    partitions: int | None
    replicas: int | None
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AlterConfig:
    """Set the given keys on the topic; the value None restores the default."""

    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class GrowPartitions:
    """Grow the topic to the given number of partitions."""

    partitions: int


@dataclass(frozen=True, slots=True)
class SetReplicationFactor:
    """Set the number of replicas for new partitions, without moving any replica.

    The number of replicas is set before moves to fewer replicas, since the `min.insync.replicas` derived from the old
    number would block the completion of these moves. The number of replicas is set after moves to more replicas, since
    the new minimum would be too strict until these moves are complete.
    """

    replicas: int


@dataclass(frozen=True, slots=True)
class MovePartition:
    """Start the move of a partition to the given brokers; the first broker is the preferred leader."""

    partition: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CancelMove:
    """Cancel the move of a partition, since the resource requests the previous number of replicas again."""

    partition: int


TopicAction = CreateTopic | AlterConfig | GrowPartitions | SetReplicationFactor | MovePartition | CancelMove


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """Progress of a change to the replication factor."""

    partitions_total: int
    partitions_left: int


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The actions for a topic in order, and the reasons why the topic cannot match its spec."""

    actions: tuple[TopicAction, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Reasons why the topic cannot match its spec, the most severe first."""
    warnings: tuple[Finding, ...] = ()
    progress: MoveProgress | None = None
    """Progress of the moves; None while every partition has the desired number of replicas."""


def plan_topic(wanted: WantedTopic, live: LiveTopics, desired_brokers: int) -> TopicPlan:
    """Return the plan for a topic. `desired_brokers` is the number of brokers in the Cluster's spec."""
    topic = live.topics.get(wanted.name)
    if topic is None or topic.state == "deleting":
        return _plan_creation(wanted, live, desired_brokers)
    if topic.state == "creating":
        return TopicPlan(findings=(Finding("ClusterNotReady", f"topic {wanted.name} is being created"),))
    if topic.link is not None:
        message = (
            f"topic {wanted.name} is a mirror of link {topic.link}; this Topic takes over once it is promoted"
        )
        return TopicPlan(findings=(Finding("OwnedByLink", message),))
    return _plan_alteration(wanted, topic, live)


def refused(code: str, key: str, message: str) -> Finding:
    """Return the finding for a refusal by the brokers, given the code, key and message of the problem."""
    if code == "invalid_config":
        return Finding(
            "ReplicationFactorTooLarge" if key == "replication_factor" else "InvalidConfig", message
        )
    return Finding("InvalidTopicName" if code == "invalid_topic_name" else "BrokersRefused", message)


def config_changes(wanted: WantedTopic, topic: LiveTopic) -> dict[str, str | None]:
    """Return the configuration keys that differ, each with the value to set, or None to restore the default."""
    given = wanted.managed_config
    own = {key: entry.value for key, entry in topic.config.items() if entry.source is ConfigSource.TOPIC}
    changes: dict[str, str | None] = {
        key: value for key, value in sorted(given.items()) if own.get(key) != _canonical(key, value)
    }
    kept = wanted.unmanaged | (
        FIXED_BY_QUORUMS if own.get(REPLICATION_MODE_KEY) == QUORUM_MODE else frozenset()
    )
    changes.update((key, None) for key in sorted(own) if key not in given and key not in kept)
    return changes


def _plan_creation(wanted: WantedTopic, live: LiveTopics, desired_brokers: int) -> TopicPlan:
    takers = len(live.placeable)
    needed = fewest_brokers(wanted.replicas, desired_brokers)
    if takers < needed:
        return TopicPlan(findings=(_too_few_brokers(wanted.name, needed, takers, desired_brokers),))
    return TopicPlan(
        actions=(CreateTopic(wanted.partitions, wanted.replicas, wanted.managed_config),),
        warnings=_warnings(wanted, None),
    )


def _too_few_brokers(name: str, needed: int, takers: int, desired_brokers: int) -> Finding:
    if needed <= desired_brokers:
        return Finding(
            "ClusterNotReady",
            f"topic {name} needs {needed} brokers that accept new replicas; only {takers} of {desired_brokers} do",
        )
    return Finding(
        "ReplicationFactorTooLarge",
        f"topic {name} needs {needed} replicas of each partition, but the Cluster requests {desired_brokers} "
        f"brokers, and {takers} accept new replicas now; lower spec.replicas or add brokers",
    )


def _plan_alteration(wanted: WantedTopic, topic: LiveTopic, live: LiveTopics) -> TopicPlan:
    actions: list[TopicAction] = []
    findings: list[Finding] = []
    changes = config_changes(wanted, topic)
    if _waits_for_replicas(changes, wanted, topic):
        del changes[MIN_ISR]
    if changes:
        actions.append(AlterConfig(changes))
    if wanted.partitions is not None and wanted.partitions > topic.partitions:
        actions.append(GrowPartitions(wanted.partitions))
    elif wanted.partitions is not None and wanted.partitions < topic.partitions:
        findings.append(
            Finding(
                "PartitionsNotReducible",
                f"topic {topic.name} has {topic.partitions} partitions, and partitions can only be added; "
                f"set spec.partitions to at least {topic.partitions}",
            )
        )
    moves = _plan_replicas(wanted.replicas, topic, live)
    return TopicPlan(
        actions=(*actions, *moves.actions),
        findings=(*findings, *moves.findings),
        warnings=_warnings(wanted, topic),
        progress=moves.progress,
    )


def _plan_replicas(replicas: int | None, topic: LiveTopic, live: LiveTopics) -> TopicPlan:
    """Return the next actions to reach the desired number of replicas, even while an earlier change is in progress.

    A reassignment does not change the replication factor of the topic, so a separate action sets the factor: before
    moves to fewer brokers and after moves to more brokers, so that `min.insync.replicas` never exceeds the number of
    replicas of a partition.
    """
    if replicas is None:
        return TopicPlan()
    written = (SetReplicationFactor(replicas),) if topic.replication_factor != replicas else ()
    changing = [each for each in topic.placement if len(each.target) != replicas]
    arriving = [
        each for each in topic.placement if len(each.target) == replicas and len(each.origin) != replicas
    ]
    if not changing and not arriving:
        return TopicPlan(actions=written)
    before = written if replicas < topic.replication_factor else ()
    moves: list[TopicAction] = []
    chooser = ReplicaChooser(live.brokers, live.load)
    under_way = sum(each.moving for each in topic.placement)
    for partition in changing:
        if partition.moving:
            if len(partition.origin) == replicas:
                moves.append(CancelMove(partition.index))
            continue
        chosen = chooser.choose(partition, replicas)
        if chosen is None:
            return TopicPlan(actions=before, findings=(_unplaceable(topic, partition, replicas, live),))
        if under_way < MOVES_MAX:
            moves.append(MovePartition(partition.index, chosen))
            under_way += 1
    return TopicPlan(
        actions=(*before, *moves),
        progress=MoveProgress(len(topic.placement), len(changing) + len(arriving)),
    )


def _unplaceable(topic: LiveTopic, partition: LivePartition, replicas: int, live: LiveTopics) -> Finding:
    able = len({each.id for each in live.placeable}.union(partition.target))
    return Finding(
        "ReplicationFactorTooLarge",
        f"topic {topic.name} needs {replicas} replicas of each partition, but only {able} brokers can keep "
        f"partition {partition.index}; lower spec.replicas or add brokers",
    )


def _waits_for_replicas(changes: Mapping[str, str | None], wanted: WantedTopic, topic: LiveTopic) -> bool:
    """Return whether the new `min.insync.replicas` can be set only after the move to more replicas.

    Brokers refuse a `min.insync.replicas` above the replication factor.
    """
    asked = changes.get(MIN_ISR)
    if asked is None or not asked.isdecimal() or wanted.replicas is None:
        return False
    return topic.replication_factor < int(asked) <= wanted.replicas


def _warnings(wanted: WantedTopic, topic: LiveTopic | None) -> tuple[Finding, ...]:
    unknown = sorted(wanted.unmanaged - TOPIC_KEYS.keys())
    if not unknown:
        return _min_isr_warnings(wanted, topic)
    message = f"spec.unmanagedConfig has keys that topics do not have: {', '.join(unknown)}"
    return (*_min_isr_warnings(wanted, topic), Finding("UnmanagedKeys", message))


def _min_isr_warnings(wanted: WantedTopic, topic: LiveTopic | None) -> tuple[Finding, ...]:
    """Return a warning if `min.insync.replicas` is larger than the number of replicas."""
    replicas = wanted.replicas or (topic.replication_factor if topic is not None else None)
    text = wanted.managed_config.get(MIN_ISR)
    live = None if topic is None else topic.config.get(MIN_ISR)
    if (
        text is None
        and live is not None
        and live.source is not ConfigSource.UNUSED
        and MIN_ISR not in wanted.unmanaged
    ):
        text = live.value
    if replicas is None or text is None or not text.isdecimal() or int(text) <= replicas:
        return ()
    message = (
        f"{MIN_ISR} of topic {wanted.name} is {text}, but each partition has {replicas} replicas: a write with "
        f"acks=all needs all {replicas} replicas in sync, or is refused; lower {MIN_ISR} or raise spec.replicas"
    )
    return (Finding("MinInsyncReplicasTooLarge", message),)


def _canonical(key: str, value: str) -> str:
    """Return a configuration value as the brokers store it; values of unknown keys are unchanged."""
    try:
        return stored_value(key, value)
    except ProblemError:
        return value
