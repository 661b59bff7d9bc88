"""From the topic and partition that a call names to the partition's handle.

Callers: the families of calls about one partition. Must not know what is done with it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import BrokerRuntime, PartitionHandle, TopicView
from fairlead_broker.runtime.refusals import topic_recreated, wrong_leader_epoch
from fairlead_broker.server.http.call import Call

OFFICE_SECONDS_MAX: Final = 1.0
"""How long a call waits for a leader that becomes leader: opening one log takes milliseconds."""


def topic_of(call: Call, runtime: BrokerRuntime) -> TopicView:
    """The topic in the path. Raises topic_not_found, or topic_recreated when the caller expects another id."""
    return checked_topic(runtime.topic(call.topic), call.topic_id)


def checked_topic(view: TopicView, expected: TopicId | None) -> TopicView:
    """The topic, if its id is the expected one or none is expected; else raises topic_recreated."""
    if expected is not None and expected != view.topic_id:
        raise topic_recreated(view.name, expected, view.topic_id)
    return view


async def topic_to_write(call: Call, runtime: BrokerRuntime) -> tuple[TopicView, bool]:
    """The topic in the path, and whether it is still to be created: what is refused must leave no topic behind.

    A topic to be created comes as the defaults would make it; ``topic_creation`` makes it. Who names a topic id or
    a leader epoch means one that was there. Raises as ``topic_of``, and what creating a topic raises.
    """
    try:
        return topic_of(call, runtime), False
    except ProblemError as problem:
        known = call.topic_id is not None or call.leader_epoch is not None
        if problem.code != "topic_not_found" or known or not runtime.auto_create_topics:
            raise
    planned, _ = await runtime.create_topic(CreateTopicRequest(name=call.topic), dry_run=True)
    return planned, True


async def partition_of(call: Call, runtime: BrokerRuntime) -> PartitionHandle:
    """The partition in the path.

    Raises as ``topic_of``, partition_not_found, not_leader or no_leader; unknown_leader_epoch when the caller has
    seen a later leader than this broker knows: what we would answer might be older than what it has.
    """
    return await partition_in(call, topic_of(call, runtime), runtime)


async def partition_in(call: Call, topic: TopicView, runtime: BrokerRuntime) -> PartitionHandle:
    """The partition of the path in a topic; raises as ``partition_of`` does for partitions."""
    handle = await led_partition(runtime, topic.topic_id, call.partition)
    seen = call.leader_epoch
    if seen is not None and seen > handle.leader_epoch:
        raise wrong_leader_epoch(handle.topic, handle.index, seen, handle.leader_epoch)
    return handle


async def led_partition(runtime: BrokerRuntime, topic_id: TopicId, index: PartitionIndex) -> PartitionHandle:
    """The partition, after a short wait where this broker is named its leader and is about to become leader."""
    try:
        return runtime.partition(topic_id, index)
    except ProblemError as problem:
        if problem.code != "no_leader" or not runtime.peer_side.named_leader(topic_id, index):
            raise
    with suppress(TimeoutError):
        async with asyncio.timeout(OFFICE_SECONDS_MAX):
            await runtime.settled()
    return runtime.partition(topic_id, index)
