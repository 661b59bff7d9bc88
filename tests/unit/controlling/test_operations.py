"""Operations on request: moves, elections, cordons, drains, and their refusals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import BrokerEpoch, BrokerId, PartitionIndex, TopicId
from fairlead_broker.controlling.operations import ElectionKind
from fairlead_broker.registry.records import InSync, encode
from fairlead_broker.registry.store_writes import Put
from operations_kit import TOPIC, begin, catch_up, isr, partitions_of, refusal, replicas

P0 = PartitionIndex(0)


async def test_a_partition_grows_catches_up_and_shrinks(cluster: Any) -> None:
    """A moved partition gets a replica with a new generation, and loses the removed replicas in one write."""
    await begin(cluster, brokers=4, replication_factor=3)
    [before] = partitions_of(cluster.metadata)
    [extra] = {1, 2, 3, 4}.difference(replicas(before))
    gone, *kept = replicas(before)
    operations = cluster.controller.operations
    growing = await operations.reassign(TOPIC, P0, [*map(BrokerId, kept), BrokerId(extra)])
    [move] = operations.reassignments()
    await catch_up(cluster)
    await cluster.until(lambda metadata: not partitions_of(metadata)[0].removing)
    [after] = partitions_of(cluster.metadata)

    assert replicas(growing) == [*kept, extra, gone]
    assert (growing.adding, growing.removing) == ((extra,), (gone,))
    assert growing.replicas[2].generation > 0
    assert (move.topic, move.partition, move.replicas) == (TOPIC, 0, (*kept, extra))
    assert replicas(after) == [*kept, extra]
    assert isr(after) == sorted([*kept, extra])
    assert after.leader is not None
    assert after.leader.broker in kept
    assert after.leader_epoch == before.leader_epoch + 1
    assert cluster.controller.operations.reassignments() == ()


async def test_a_replica_that_comes_again_never_has_an_old_generation(cluster: Any) -> None:
    """A replica that returns to a broker gets a new generation, so that earlier reports do not count."""
    await begin(cluster, brokers=2, replication_factor=1)
    [before] = partitions_of(cluster.metadata)
    [first] = replicas(before)
    second = 3 - first
    generations = []
    for wanted in (second, first, second):
        moving = await cluster.controller.operations.reassign(TOPIC, P0, [BrokerId(wanted)])
        generations.append(next(each.generation for each in moving.replicas if each.broker == wanted))
        await catch_up(cluster)
        await cluster.until(lambda metadata, wanted=wanted: replicas(partitions_of(metadata)[0]) == [wanted])

    assert generations == sorted(set(generations))
    assert generations[0] > 0


async def test_a_move_can_be_cancelled(cluster: Any) -> None:
    """A move can be cancelled, and a different move is refused while one is in progress."""
    await begin(cluster, brokers=4, replication_factor=3, min_insync_replicas="2")
    [before] = partitions_of(cluster.metadata)
    [extra] = {1, 2, 3, 4}.difference(replicas(before))
    operations = cluster.controller.operations
    target = [BrokerId(extra), *map(BrokerId, replicas(before)[:2])]
    await operations.reassign(TOPIC, P0, target)
    again = await operations.reassign(TOPIC, P0, target)
    other = await refusal(operations.reassign(TOPIC, P0, target[::-1]))
    cancelled = await operations.cancel_reassignment(TOPIC, P0)
    idle = await operations.cancel_reassignment(TOPIC, P0)

    assert again.adding == (extra,)
    assert other.code == "reassignment_in_progress"
    assert sorted(replicas(cancelled)) == sorted(replicas(before))
    assert idle == cancelled
    assert (cancelled.adding, cancelled.removing) == ((), ())


async def test_a_cancel_that_would_leave_too_few_in_sync_waits(cluster: Any) -> None:
    """A cancellation that would leave the ISR below its minimum is refused."""
    await begin(cluster, brokers=4, replication_factor=3, min_insync_replicas="3")
    [before] = partitions_of(cluster.metadata)
    [extra] = {1, 2, 3, 4}.difference(replicas(before))
    operations = cluster.controller.operations
    assert before.leader is not None
    followers = [each for each in replicas(before) if each != before.leader.broker]
    await operations.reassign(TOPIC, P0, [before.leader.broker, BrokerId(extra), BrokerId(followers[0])])
    controller = cluster.controller.membership.broker_id
    victim = next(each for each in followers if each != controller)
    await cluster.kill(victim)
    await cluster.until(lambda metadata: victim not in isr(partitions_of(metadata)[0]))
    problem = await refusal(cluster.controller.operations.cancel_reassignment(TOPIC, P0))

    assert problem.code == "not_enough_replicas"
    assert (problem.data["in_sync"], problem.data["required"]) == (2, 3)


@pytest.mark.parametrize(
    ("wanted", "code", "named"),
    [
        ([], "invalid_config", "names no broker"),
        ([1, 2, 2], "invalid_config", "names broker 2 twice"),
        ([1], "invalid_config", "has 1 replicas, but min.insync.replicas requires 2"),
        ([1, 2, 9], "broker_not_found", "no broker 9"),
        ([1, 2, 4], "invalid_config", "names broker 4, which takes no new replicas; expected 1, 2, 3"),
    ],
)
async def test_replicas_that_cannot_be_are_refused(
    cluster: Any, wanted: list[int], code: str, named: str
) -> None:
    """The refusal of an invalid list of replicas, which changes nothing, names the broker or the number of replicas."""
    for broker in (1, 2, 3):
        await cluster.add(broker)
    await begin(cluster, brokers=0, replication_factor=3, min_insync_replicas="2")
    await cluster.add(4)
    await cluster.controller.operations.cordon(BrokerId(4))
    before = partitions_of(cluster.metadata)
    problem = await refusal(
        cluster.controller.operations.reassign(TOPIC, P0, [BrokerId(each) for each in wanted])
    )

    assert problem.code == code
    assert named in problem.detail
    assert partitions_of(cluster.metadata) == before


async def test_topics_and_partitions_that_are_not_there_are_refused(cluster: Any) -> None:
    """An unknown topic, partition or topic id is refused."""
    await begin(cluster, brokers=1, replication_factor=1)
    operations = cluster.controller.operations
    target = [BrokerId(1)]
    other = TopicId("00000000-0000-4000-8000-00000000abcd")

    assert (await refusal(operations.reassign("none", P0, target))).code == "topic_not_found"
    assert (
        await refusal(operations.reassign(TOPIC, PartitionIndex(7), target))
    ).code == "partition_not_found"
    assert (await refusal(operations.reassign(TOPIC, P0, target, other))).code == "topic_recreated"


async def test_a_cordoned_broker_gets_nothing_new_and_keeps_what_it_has(cluster: Any) -> None:
    """A cordoned broker keeps its replicas and gets no new replicas until it is uncordoned."""
    await begin(cluster, brokers=3, replication_factor=3)
    operations, admin = cluster.controller.operations, cluster.controller.admin
    await operations.cordon(BrokerId(2))
    problem = await refusal(admin.create(CreateTopicRequest(name="wide", replication_factor=3)))
    narrow, _ = await admin.create(CreateTopicRequest(name="narrow", partitions=6, replication_factor=2))
    kept = {
        replica.broker
        for each in cluster.controller.mirror.metadata.partitions(narrow.topic_id).values()
        for replica in each.value.replicas
    }
    await operations.uncordon(BrokerId(2))
    await admin.create(CreateTopicRequest(name="wide", replication_factor=3))

    assert problem.code == "invalid_config"
    assert problem.data["allowed"] == "1 to 2"
    assert kept == {1, 3}
    assert sorted(replicas(partitions_of(cluster.metadata)[0])) == [1, 2, 3]


async def test_a_drained_broker_leads_nothing_and_then_keeps_nothing(cluster: Any) -> None:
    """A drained broker loses its leaderships and then its replicas, and can be unregistered after it has stopped."""
    await begin(cluster, brokers=4, replication_factor=3, partitions=4, min_insync_replicas="2")
    controller = cluster.controller
    drained = next(each for each in (1, 2, 3, 4) if each != controller.membership.broker_id)
    await controller.operations.drain(BrokerId(drained))
    await cluster.until(
        lambda metadata: all(
            record.leader and record.leader.broker != drained for record in partitions_of(metadata)
        )
    )
    await cluster.until(
        lambda metadata: all(
            record.adding or drained not in replicas(record) for record in partitions_of(metadata)
        )
    )
    for partition, record in enumerate(partitions_of(cluster.metadata)):
        if record.adding:
            await catch_up(cluster, partition)
    await cluster.until(
        lambda metadata: all(drained not in replicas(record) for record in partitions_of(metadata))
    )
    running = await refusal(controller.operations.unregister(BrokerId(drained)))
    await cluster.kill(drained)
    await cluster.until(lambda metadata: drained not in metadata.brokers)
    await cluster.controller.operations.unregister(BrokerId(drained))
    forgotten = await refusal(cluster.controller.operations.unregister(BrokerId(drained)))

    assert all(len(record.replicas) == 3 for record in partitions_of(cluster.metadata))
    assert running.code == "not_possible_now"
    assert forgotten.code == "broker_not_found"


async def test_a_broker_that_is_gone_can_be_drained(cluster: Any) -> None:
    """A lost broker can be drained by copying its replicas elsewhere; until then, it cannot be unregistered."""
    await begin(cluster, brokers=4, replication_factor=3)
    [record] = partitions_of(cluster.metadata)
    controller = cluster.controller
    lost = next(each for each in replicas(record) if each != controller.membership.broker_id)
    await cluster.kill(lost)
    await cluster.until(lambda metadata: lost not in isr(partitions_of(metadata)[0]))
    keeps = await refusal(controller.operations.unregister(BrokerId(lost)))
    await controller.operations.drain(BrokerId(lost))
    await cluster.until(lambda metadata: partitions_of(metadata)[0].adding)
    await catch_up(cluster)
    await cluster.until(lambda metadata: lost not in replicas(partitions_of(metadata)[0]))

    assert keeps.code == "not_possible_now"
    assert "1 replicas" in keeps.detail


async def test_a_drained_broker_that_is_gone_is_waited_for_in_no_move(cluster: Any) -> None:
    """A move to a lost, drained broker is cancelled, and another broker gets the replica."""
    await begin(cluster, brokers=5, replication_factor=3)
    operations = cluster.controller.operations
    free = [each for each in (1, 2, 3, 4, 5) if each != cluster.controller.membership.broker_id]
    first = next(each for each in free if each in replicas(partitions_of(cluster.metadata)[0]))
    await operations.drain(BrokerId(first))
    await cluster.until(lambda metadata: partitions_of(metadata)[0].adding)
    [lost] = partitions_of(cluster.metadata)[0].adding
    if lost == cluster.controller.membership.broker_id:
        operations = cluster.lives[first].operations
    await cluster.kill(lost)
    await operations.drain(BrokerId(lost))
    await cluster.until(lambda metadata: partitions_of(metadata)[0].adding not in ((), (lost,)))
    [record] = partitions_of(cluster.metadata)

    assert lost not in replicas(record)
    assert record.removing == (first,)


async def test_a_move_that_a_drain_would_begin_again_is_not_cancelled(cluster: Any) -> None:
    """A move that a drain would start again is not cancelled before the drain ends."""
    await begin(cluster, brokers=4, replication_factor=3)
    operations, before = cluster.controller.operations, replicas(partitions_of(cluster.metadata)[0])
    await operations.drain(drained := BrokerId(before[-1]))
    await cluster.until(lambda metadata: partitions_of(metadata)[0].adding)
    problem = await refusal(operations.cancel_reassignment(TOPIC, P0))
    await operations.undrain(drained)
    back = await operations.cancel_reassignment(TOPIC, P0)

    assert (problem.code, problem.data["broker"]) == ("not_possible_now", drained)
    assert sorted(replicas(back)) == sorted(before)


async def test_what_a_drain_cannot_move_is_named(cluster: Any) -> None:
    """A partition that a drain cannot move is reported until another broker can take it."""
    await begin(cluster, brokers=3, replication_factor=3, partitions=2)
    operations = cluster.controller.operations
    drained = BrokerId(next(each for each in (1, 2, 3) if each != cluster.controller.membership.broker_id))
    undrained = operations.immovable(drained)
    await operations.drain(drained)
    alone = operations.immovable(drained)
    await cluster.add(4)
    await cluster.until(lambda metadata: 4 in metadata.brokers)

    assert undrained == []
    assert alone == ["flights-0", "flights-1"]
    assert operations.immovable(drained) == []


async def test_a_broker_that_is_gone_is_known_while_it_keeps_something(cluster: Any) -> None:
    """A lost broker is reported while a partition has a replica on it."""
    await begin(cluster, brokers=3, replication_factor=2)
    [record] = partitions_of(cluster.metadata)
    before = cluster.controller.operations.gone()
    lost = next(each for each in replicas(record) if each != cluster.controller.membership.broker_id)
    await cluster.kill(lost)
    await cluster.until(lambda metadata: lost not in metadata.brokers)

    assert before == []
    assert cluster.controller.operations.gone() == [lost]


async def test_an_operation_on_an_unknown_broker_is_refused(cluster: Any) -> None:
    """An operation on an unknown broker is refused."""
    await begin(cluster, brokers=1, replication_factor=1)
    operations = cluster.controller.operations
    calls = (
        operations.cordon,
        operations.uncordon,
        operations.drain,
        operations.undrain,
        operations.request_restart,
        operations.unregister,
    )

    assert {(await refusal(call(BrokerId(9)))).code for call in calls} == {"broker_not_found"}


async def test_the_preferred_leader_is_elected_on_request(cluster: Any) -> None:
    """The preferred leader is elected on request if it is in sync; otherwise the request is refused."""
    await begin(cluster, brokers=3, replication_factor=3, min_insync_replicas="1")
    [record] = partitions_of(cluster.metadata)
    first = record.replicas[0].broker
    operations = cluster.controller.operations
    same = await operations.elect(TOPIC, P0, ElectionKind.PREFERRED)
    epoch = await cluster.kill(first)
    await cluster.until(lambda metadata: first not in isr(partitions_of(metadata)[0]))
    await cluster.add(first, last_broker_epoch=epoch)
    problem = await refusal(cluster.controller.operations.elect(TOPIC, P0, ElectionKind.PREFERRED))
    await catch_up(cluster)
    await cluster.until(lambda metadata: len(isr(partitions_of(metadata)[0])) == 3)
    elected = await cluster.controller.operations.elect(TOPIC, P0, ElectionKind.PREFERRED)

    assert same == record
    assert problem.code == "not_possible_now"
    assert elected.leader is not None
    assert elected.leader.broker == first


async def test_an_unclean_election_needs_the_topics_permission(cluster: Any, kit: Any) -> None:
    """An unclean election on request needs the topic's permission, and changes nothing if a leader exists."""
    await begin(cluster, brokers=2, replication_factor=2, min_insync_replicas="1")
    operations = cluster.controller.operations
    idle = await operations.elect(TOPIC, P0, ElectionKind.UNCLEAN)
    [record] = partitions_of(cluster.metadata)
    controller = cluster.controller.membership.broker_id
    other = 3 - controller
    topic_id = cluster.metadata.topics[TOPIC].value.topic_id
    epoch = cluster.lives[other].membership.broker_epoch
    alone = msgspec.structs.replace(
        record, leader=None, isr=(InSync(broker=BrokerId(other), broker_epoch=epoch),)
    )
    await cluster.kill(other)
    key = cluster.metadata.keys.partition(topic_id, 0)
    await cluster.store.transact((), (Put(key, encode(alone)),))
    await cluster.until(lambda metadata: partitions_of(metadata)[0].leader is None)
    refused = await refusal(operations.elect(TOPIC, P0, ElectionKind.UNCLEAN))
    allowed = msgspec.structs.replace(alone, unclean=True)
    written = await cluster.store.transact((), (Put(key, encode(allowed)),))
    await cluster.controller.mirror.wait_for(written.revision)
    unheard = await refusal(operations.elect(TOPIC, P0, ElectionKind.UNCLEAN))
    cluster.controller.ends[controller] = kit.log_end(0, 3)
    elected = await operations.elect(TOPIC, P0, ElectionKind.UNCLEAN)

    assert idle == record
    assert refused.code == "not_possible_now"
    assert "unclean.leader.election.enable=true" in refused.detail
    assert unheard.code == "no_leader"
    assert elected.leader is not None
    assert elected.leader.broker == controller
    assert isr(elected) == [controller]


async def test_an_unclean_election_waits_for_every_registered_replica(cluster: Any, kit: Any) -> None:
    """An unclean election is refused while a registered replica does not report its log end."""
    await begin(cluster, brokers=2, replication_factor=2, min_insync_replicas="1", durability="replicated")
    [record] = partitions_of(cluster.metadata)
    controller = cluster.controller.membership.broker_id
    other = BrokerId(3 - controller)
    lost = msgspec.structs.replace(
        record, leader=None, isr=(InSync(broker=other, broker_epoch=BrokerEpoch(1)),), unclean=True
    )
    key = cluster.metadata.keys.partition(cluster.metadata.topics[TOPIC].value.topic_id, 0)
    written = await cluster.store.transact((), (Put(key, encode(lost)),))
    await cluster.controller.mirror.wait_for(written.revision)
    cluster.controller.ends[controller] = kit.log_end(0, 3)
    refused = await refusal(cluster.controller.operations.elect(TOPIC, P0, ElectionKind.UNCLEAN))

    assert refused.code == "not_possible_now"
    assert refused.data["brokers"] == [other]
