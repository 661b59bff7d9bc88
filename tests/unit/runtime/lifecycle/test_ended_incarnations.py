"""Leaderships of an ended incarnation that have not been closed: they answer nothing that requires a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest

from fairlead_api.identifiers import Acks, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from runtime_kit import TopicClient, WatchedStorage, topic
from waiting import until

StartRuntime = Callable[..., Awaitable[Broker]]


async def without_leader(flights: TopicClient, partition: int) -> None:
    """Remove the leader from a partition record, and wait until the mirror has the change."""
    parts = flights.broker
    index = PartitionIndex(partition)
    record = parts.metadata.partitions(flights.topic_id)[index].value
    put = Put(
        parts.entry.keys.partition(flights.topic_id, index),
        encode(msgspec.structs.replace(record, leader=None)),
    )
    result = await parts.entry.coordination.transact((), (put,))
    await parts.entry.mirror.wait_for(result.revision)


def refusals_of(partition: LeaderReplica) -> list[str]:
    """Return the codes with which writes of each kind and a request for the log end are refused."""
    codes = [_code(partial(partition.check_writable, acks)) for acks in Acks]
    return [*codes, _code(partition.leadership.check_latest)]


def _code(call: Callable[[], object]) -> str:
    try:
        call()
    except ProblemError as problem:
        return problem.code
    return "allowed"


async def test_the_next_life_does_not_confirm_the_one_before(start_runtime: StartRuntime) -> None:
    """The lease of a new incarnation does not confirm a leadership of the previous incarnation."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage)
    flights = await topic(runtime, partitions=2, unclean_leader_election_enable=True)
    life, partition = runtime.entry.incarnation, flights.handle()
    before = life.membership
    allowed = refusals_of(partition)
    storage.hold()
    late = asyncio.ensure_future(flights.produce(b"held", partition=1))
    await until(storage.waiting.is_set)
    await without_leader(flights, 1)
    await runtime.entry.coordination.revoke(before.lease)
    try:
        await until(lambda: life.membership is not before)
        in_between, closed = refusals_of(partition), partition.closed
    finally:
        storage.may_sync.set()
    with pytest.raises(ProblemError):
        await late
    await runtime.replicas.settled()

    assert allowed == ["allowed"] * 4
    assert not closed
    assert in_between == ["coordination_unavailable"] * 3 + ["offset_not_available"]
    assert not before.is_confirmed
