"""Lookup of the broker that leads the partition of a call: this broker, with its leader replica, or another broker.

Used by the calls about partitions. The module must not depend on the kind of call.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import BrokerId, LeaderEpoch, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import Broker, TopicView
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.refusals import topic_id_not_found, topic_recreated, wrong_leader_epoch
from fairlead_broker.server.http.call import Call

LEADERSHIP_SECONDS_MAX: Final = 1.0
"""Maximum number of seconds for which a call waits for this broker to become the leader; opening one log takes
milliseconds."""


@dataclass(frozen=True, slots=True)
class Here:
    """Location of a partition that this broker leads."""

    replica: LeaderReplica


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Location of a partition that another broker leads; the call may be forwarded to that broker."""

    broker: BrokerId


Location: TypeAlias = Here | Elsewhere


def leader_elsewhere(call: Call, broker: Broker, topic_id: str, partition: int) -> BrokerId | None:
    """Return the other broker that leads a partition, for fetches, which look up local replicas at each poll.

    The result is None if this broker leads the partition or the call must not be forwarded.
    """
    if not call.may_forward:
        return None
    leader = named_leader(broker, TopicId(topic_id), PartitionIndex(partition))
    return None if leader is None or leader == broker.peer_side.peers.own.broker else leader


def named_leader(broker: Broker, topic_id: TopicId, index: PartitionIndex) -> BrokerId | None:
    """Return the broker that the partition's record names as leader.

    The named broker might not have become the leader yet.
    """
    record = broker.peer_side.mirror.metadata.partitions(topic_id).get(index)
    leader = record and record.value.leader
    return leader.broker if leader else None


async def locate(call: Call, broker: Broker, topic_id: TopicId, index: PartitionIndex) -> Location:
    """Return the location of a partition's leader, after a wait if this broker is about to become leader.

    Raises partition_not_found, not_leader or no_leader.
    """
    leader = leader_elsewhere(call, broker, topic_id, index)
    if leader is not None:
        return Elsewhere(leader)
    return Here(await _led_replica(broker, topic_id, index))


async def _led_replica(broker: Broker, topic_id: TopicId, index: PartitionIndex) -> LeaderReplica:
    """Return this broker's leader replica of a partition. Raises the same problems as `locate`."""
    try:
        return broker.replicas.find(topic_id, index)
    except ProblemError as problem:
        if (
            problem.code != "no_leader"
            or named_leader(broker, topic_id, index) != broker.peer_side.peers.own.broker
        ):
            raise
    with suppress(TimeoutError):
        async with asyncio.timeout(LEADERSHIP_SECONDS_MAX):
            await broker.replicas.settled()
    return broker.replicas.find(topic_id, index)


async def locate_path(call: Call, broker: Broker, topic: TopicView | None = None) -> Location:
    """Return the location of the leader of the partition in the path; `topic` avoids a second lookup of the topic.

    Raises the problems of `topic_of` and `locate`. Raises unknown_leader_epoch if the caller has seen a later leader
    epoch than this broker, because the answer could be older than what the caller has already seen.
    """
    topic = topic or topic_of(call, broker)
    found = await locate(call, broker, topic.topic_id, call.partition)
    if isinstance(found, Here):
        check_epoch(found.replica, call.leader_epoch)
    return found


def check_epoch(replica: LeaderReplica, seen: LeaderEpoch | None) -> None:
    """Raise unknown_leader_epoch if the caller has seen a later leader epoch than the replica's."""
    if seen is not None and seen > replica.leader_epoch:
        raise wrong_leader_epoch(replica.topic, replica.index, seen, replica.leader_epoch)


def refusal_by_id(call: Call, broker: Broker, operation: Operation, topic_id: TopicId) -> ProblemError | None:
    """Return the problem for an operation on a topic that the request names by its id, or None if allowed.

    An unknown id and the id of a topic that the caller is not allowed to describe get the same problem (rule Z7).
    """
    access = call.access
    try:
        name = broker.views.by_id(topic_id).name
    except ProblemError as problem:
        return problem if not access.hides else topic_id_not_found(topic_id)
    if access.allows(operation, Kind.TOPIC, name):
        return None
    if not access.sees(Kind.TOPIC, name):
        return topic_id_not_found(topic_id)
    return access.refusal(operation, Kind.TOPIC, name)


def topic_of(call: Call, broker: Broker) -> TopicView:
    """Return the topic in the path. Raises topic_not_found, or topic_recreated if the caller expects a different id."""
    return checked_topic(broker.views.by_name(call.topic), call.topic_id)


def checked_topic(view: TopicView, expected: TopicId | None) -> TopicView:
    """Return the topic if it has the expected id or no id is expected; raise topic_recreated otherwise."""
    if expected is not None and expected != view.topic_id:
        raise topic_recreated(view.name, expected, view.topic_id)
    return view


async def topic_to_write(call: Call, broker: Broker) -> tuple[TopicView, bool]:
    """Return the topic in the path, and whether the topic must still be created.

    The function does not create the topic, because a refused call must not create a topic. The view of a missing topic
    has the default settings. A call with a topic id or a leader epoch refers to an existing topic, so no topic is
    created for such a call. Raises the problems of `topic_of` and of creating a topic.
    """
    try:
        return topic_of(call, broker), False
    except ProblemError as problem:
        known = call.topic_id is not None or call.leader_epoch is not None
        if problem.code != "topic_not_found" or known or not broker.configs.auto_create_topics:
            raise
    call.access.require(Operation.CREATE, Kind.TOPIC, call.topic)
    planned, _ = await broker.create_topic(CreateTopicRequest(name=call.topic), dry_run=True)
    return planned, True
