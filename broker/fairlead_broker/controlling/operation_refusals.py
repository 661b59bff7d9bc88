"""Problems for refused operator requests. Each problem names its subject, the numbers and the allowed values.

`operations`, `restart_permits`, calls about links and leaders of mirrors raise these problems.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.controller.election import Brokers
from fairlead_broker.registry.quorum import in_sync as in_sync_entries
from fairlead_broker.registry.records import MirrorOf, PartitionRecord


def broker_not_found(broker: BrokerId) -> ProblemError:
    """Return the refusal for a broker that is not registered, has no configuration and has no replica."""
    return ProblemError("broker_not_found", f"no broker {broker} is registered", data={"broker": broker})


def topic_not_found(topic: str) -> ProblemError:
    """Return the refusal for a topic name that does not exist."""
    return ProblemError("topic_not_found", f"there is no topic {topic}", data={"topic": topic})


def topic_recreated(topic: str, expected: TopicId, actual: TopicId) -> ProblemError:
    """Return the refusal for a request whose topic id differs from the id of the topic with this name."""
    return ProblemError(
        "topic_recreated",
        f"topic {topic} has id {actual} now, not {expected}",
        data={"topic": topic, "expected": expected, "actual": actual},
    )


def partition_not_found(topic: str, partition: PartitionIndex, partitions: int) -> ProblemError:
    """Return the refusal for a partition that the topic does not have."""
    return ProblemError(
        "partition_not_found",
        f"topic {topic} has partitions 0 to {partitions - 1}, not {partition}",
        data={"topic": topic, "partition": partition, "partitions": partitions},
    )


def bad_replicas(wanted: Sequence[BrokerId], why: str, allowed: str) -> ProblemError:
    """Return the refusal for an invalid list of replicas."""
    named = ", ".join(map(str, wanted))
    return ProblemError(
        "invalid_config",
        f"the list of replicas [{named}] {why}; expected {allowed}",
        data={"key": "replicas", "value": named, "allowed": allowed},
    )


def too_many_partitions(
    topic: str, candidates: Sequence[BrokerId], brokers: Brokers, load: Mapping[BrokerId, int]
) -> ProblemError:
    """Return the refusal for new replicas that no candidate has room for; the problem names the fullest candidate."""

    def room(broker: BrokerId) -> float:
        limit = brokers[broker].value.partitions_max
        return math.inf if limit is None else limit - load.get(broker, 0)

    fullest = min(candidates, key=lambda broker: (room(broker), broker))
    limit, count = brokers[fullest].value.partitions_max, load.get(fullest, 0)
    return ProblemError(
        "too_many_partitions",
        f"the brokers have no room for all new replicas of topic {topic}; broker {fullest} has {count} of at most "
        f"{limit}, including replicas that operations in progress will add",
        data={"topic": topic, "broker": fullest, "limit": limit, "count": count},
    )


def already_moving(topic: str, partition: PartitionIndex, record: PartitionRecord) -> ProblemError:
    """Return the refusal for a second move of a partition that is already being moved."""
    return ProblemError(
        "reassignment_in_progress",
        f"{topic}-{partition} is being moved: {_named(record.adding)} added, {_named(record.removing)} removed",
        data={"topic": topic, "partition": partition},
    )


def cancel_has_to_wait(topic: str, partition: PartitionIndex, left: int, required: int) -> ProblemError:
    """Return the refusal for a cancellation that would leave too few in-sync replicas or no leader."""
    return ProblemError(
        "not_enough_replicas",
        f"the move of {topic}-{partition} cannot be cancelled yet: {left} of the remaining replicas are in sync, but "
        f"{required} in-sync replicas and one that can lead are required",
        data={"topic": topic, "partition": partition, "in_sync": left, "required": required},
    )


def drain_begins_again(topic: str, partition: PartitionIndex, draining: Sequence[BrokerId]) -> ProblemError:
    """Return the refusal for a cancellation after which a drain would start the same move from the beginning."""
    return ProblemError(
        "not_possible_now",
        f"{topic}-{partition} is being moved by the drains of brokers {_named(draining)}, which would begin the same "
        "move again; end these drains first, or cordon the broker that must not get the partition",
        data={"topic": topic, "partition": partition, "broker": draining[0]},
    )


def preferred_cannot_lead(topic: str, partition: PartitionIndex, record: PartitionRecord) -> ProblemError:
    """Return the refusal for the election of a preferred leader that cannot lead, with the reason."""
    preferred = record.replicas[0].broker
    if record.restored:
        reason = "its record comes from a backup, and all its replicas must report their log ends first"
    else:
        in_sync = _named(tuple(entry.broker for entry in in_sync_entries(record)))
        reason = f"the broker must be running, not draining, and in sync; the in-sync brokers are {in_sync}"
    return ProblemError(
        "not_possible_now",
        f"broker {preferred}, the preferred leader of {topic}-{partition}, cannot lead now: {reason}",
        data={"topic": topic, "partition": partition, "broker": preferred},
    )


def unclean_not_allowed(topic: str, partition: PartitionIndex) -> ProblemError:
    """Return the refusal for an unclean election of a topic whose configuration does not allow the loss of records."""
    return ProblemError(
        "not_possible_now",
        f"topic {topic} does not allow an unclean election of partition {partition}; first set "
        "unclean.leader.election.enable=true on the topic, which accepts the loss of acknowledged records",
        data={"topic": topic, "partition": partition},
    )


def no_candidate(topic: str, partition: PartitionIndex, record: PartitionRecord) -> ProblemError:
    """Return the refusal for an unclean election when no running replica has reported the end of its log."""
    replicas = _named(tuple(replica.broker for replica in record.replicas))
    return ProblemError(
        "no_leader",
        f"none of the brokers {replicas} with replicas of {topic}-{partition} is running and has answered",
        data={"topic": topic, "partition": partition},
    )


def replicas_are_silent(topic: str, partition: PartitionIndex, silent: Sequence[BrokerId]) -> ProblemError:
    """Return the refusal for an unclean election while a silent registered replica may have the longest log."""
    return ProblemError(
        "not_possible_now",
        f"brokers {_named(silent)} have replicas of {topic}-{partition} and are registered, but have not reported "
        "their log ends; retry, or stop these brokers and wait until their leases end",
        data={"topic": topic, "partition": partition, "brokers": list(silent)},
    )


def still_running(broker: BrokerId) -> ProblemError:
    """Return the refusal for unregistering a live broker."""
    return ProblemError(
        "not_possible_now",
        f"broker {broker} is registered; stop the broker, and wait until its lease has ended",
        data={"broker": broker},
    )


def still_keeps(broker: BrokerId, count: int) -> ProblemError:
    """Return the refusal for unregistering a broker that has replicas."""
    return ProblemError(
        "not_possible_now",
        f"broker {broker} has {count} replicas; drain the broker first",
        data={"broker": broker},
    )


@dataclass(frozen=True, slots=True)
class TooFewNear:
    """Partition with a write quorum that has too few near voters without the broker that asks to restart."""

    topic: str
    partition: PartitionIndex
    near: int
    """Number of near voters without the broker; 0 for a partition without a leader."""
    needed: int
    """Number of near voters that acknowledge records and elect a leader."""


def restart_forbidden(
    broker: BrokerId, partitions: Sequence[tuple[str, PartitionIndex]], quorums: Sequence[TooFewNear]
) -> ProblemError:
    """Return the refusal for a restart during which partitions would have too few in-sync replicas or near voters."""
    named = sorted([*partitions, *((each.topic, each.partition) for each in quorums)])
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in named[:10])
    return ProblemError(
        "restart_refused",
        f"without broker {broker}, {len(named)} partitions would have too few in-sync replicas: {shown}",
        data={
            "partitions": [f"{topic}-{partition}" for topic, partition in named],
            "quorums": [
                {"partition": f"{each.topic}-{each.partition}", "near": each.near, "needed": each.needed}
                for each in quorums
            ],
        },
    )


def another_restarts(broker: BrokerId, holder: BrokerId) -> ProblemError:
    """Return the refusal of a restart permit while another broker holds the permit."""
    return ProblemError(
        "restart_refused",
        f"broker {holder} has the permit to restart; broker {broker} gets the permit when {holder} has restarted, or "
        "after five minutes",
        data={"partitions": []},
    )


def _named(brokers: Sequence[BrokerId]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def topic_is_mirror(topic: str, mirror: MirrorOf) -> ProblemError:
    """Return the refusal of a change to a topic that a link writes (rule L7)."""
    return ProblemError(
        "topic_is_mirror",
        f"topic {topic} is a mirror of the link {mirror.link}, which alone may write the topic",
        data={"topic": topic, "link": mirror.link, "source": mirror.source_cluster_id},
    )
