"""Partitions with a write quorum on three brokers: moves of the leadership, returns, reassignments and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cluster_kit import SECONDS_MAX, Cluster, until
from fairlead import Admin, Consumer, Producer
from fairlead_api.bodies.metadata import PartitionDescription
from fairlead_api.bodies.requests import AlterTopicRequest
from fairlead_api.identifiers import BrokerId, Offset, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.operations import ElectionKind
from fairlead_broker.controlling.restart_permits import RestartPermit
from fairlead_broker.registry.quorum import vacated
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import Put
from refusals import refuses
from waiting import LOOK_SECONDS, pause

FIRST = PartitionIndex(0)


def voters(cluster: Cluster, topic_id: TopicId) -> dict[int, int]:
    """Return the voters of partition 0 with their incarnations."""
    quorum = cluster.record(topic_id).quorum
    assert quorum is not None
    return {voter.broker: voter.broker_epoch for voter in quorum.voters}


async def all_return(cluster: Cluster, topic_id: TopicId, *brokers: int) -> None:
    """Wait until the voters are these brokers in their current incarnations."""
    await until(
        lambda: (
            voters(cluster, topic_id)
            == {broker: cluster.any.metadata.brokers[BrokerId(broker)].create_revision for broker in brokers}
        ),
        f"the voters are not {brokers}",
    )


async def test_the_preferred_leader_and_a_new_replica_take_over(cluster: Cluster) -> None:
    """A reassignment adds a replica, the preferred replica becomes leader, and W follows the topic's `quorum.write`."""
    topic_id = await cluster.topic("flights", replication_factor=2, replication_mode="quorum")
    flights = await cluster.led("flights", topic_id)
    await flights.produce(b"value")
    preferred, other = (each.broker for each in cluster.record(topic_id).replicas)
    [spare] = {1, 2, 3} - {preferred, other}
    operations = cluster.controller.operations
    await operations.reassign("flights", FIRST, [BrokerId(other), BrokerId(preferred), BrokerId(spare)])
    await all_return(cluster, topic_id, 1, 2, 3)
    grown = cluster.record(topic_id)
    led = await operations.elect("flights", FIRST, ElectionKind.PREFERRED)
    await cluster.controller.alter_topic("flights", AlterTopicRequest(replication_factor=3))
    await cluster.controller.alter_topic("flights", AlterTopicRequest(config={"quorum.write": 3}))
    await until(lambda: cluster.record(topic_id).min_isr == 3, "W is not 3")
    flights = await cluster.led("flights", topic_id)
    last = await flights.produce(b"after")
    copies = await cluster.copied(topic_id, last.base_offset + 1)
    await until(
        lambda: cluster.metric("fairlead_quorum_election_seconds_count") > 0, "no election was measured"
    )

    assert cluster.metric("fairlead_quorum_vacant_partitions") == 0
    assert (grown.min_isr, len(grown.replicas)) == (2, 3)
    assert led.leader is not None
    assert led.leader.broker == other
    assert copies[0] == copies[1] == copies[2]


async def test_a_broker_may_restart_while_enough_other_voters_are_near(cluster: Cluster) -> None:
    """The refusal of a permit names the partitions with too few near voters, until the stopped voter has returned."""
    topic_id = await cluster.topic("flights", replication_mode="quorum")
    await (await cluster.led("flights", topic_id)).produce(b"value")
    await all_return(cluster, topic_id, 1, 2, 3)
    leader, controller = cluster.leader(topic_id), cluster.controller.peer_side.controller
    stopped = next(BrokerId(each) for each in (1, 2, 3) if each not in (leader, controller))
    [asking] = {1, 2, 3} - {leader, stopped}
    answers: list[RestartPermit | ProblemError] = []

    async def asked(expected: type) -> None:
        """Ask for the permit until it is granted or refused; no event announces that the leader counts other voters."""
        async with asyncio.timeout(SECONDS_MAX):
            while not answers or not isinstance(answers[-1], expected):
                await pause(LOOK_SECONDS)
                try:
                    answers.append(await cluster.controller.operations.request_restart(BrokerId(asking)))
                except ProblemError as problem:
                    answers.append(problem)

    await cluster.stop(stopped)
    await asked(ProblemError)
    refused = answers[-1]
    await cluster.start(stopped)
    await all_return(cluster, topic_id, 1, 2, 3)
    await asked(RestartPermit)

    assert isinstance(refused, ProblemError)
    assert refused.code == "restart_refused"
    assert refused.data["partitions"] == ["flights-0"]
    assert refused.data["quorums"] == [{"partition": "flights-0", "near": 1, "needed": 2}]


async def test_deleted_records_stay_deleted_and_the_mode_is_fixed(cluster: Cluster) -> None:
    """Every replica deletes records on request, and no request changes the replication mode."""
    topic_id = await cluster.topic("flights", replication_mode="quorum")
    flights = await cluster.led("flights", topic_id)
    for number in range(5):
        await flights.produce(b"value %d" % number)
    leader = cluster.leader(topic_id)
    assert leader is not None
    start = await cluster.broker(leader).delete_records(flights.handle(), Offset(4))
    await until(
        lambda: all(cluster.log(each, topic_id).log_start_offset == 4 for each in cluster.brokers),
        "not every replica deleted the records",
    )
    with refuses("invalid_config"):
        await cluster.controller.alter_topic("flights", AlterTopicRequest(config={"replication.mode": "isr"}))
    with pytest.raises(ProblemError):
        await cluster.topic("twice", replication_mode="quorum", quorum_write=1)

    assert start == 4


async def test_an_operator_elects_the_replica_that_is_left(cluster: Cluster) -> None:
    """With fewer than R voters the partition has no leader, until an operator accepts the longest log."""
    topic_id = await cluster.topic("flights", replication_mode="quorum")
    flights = await cluster.led("flights", topic_id)
    await flights.produce(b"value")
    leader = cluster.leader(topic_id)
    assert leader is not None
    [first, second] = sorted({1, 2, 3} - {leader})
    for broker in (first, leader, second):
        await cluster.stop(broker)
    await cluster.start(second)
    await until(lambda: cluster.leader(topic_id) is None, "the partition still has a leader")
    await until(
        lambda: all(
            cluster.metric("fairlead_quorum_missing_promises", voter=str(each)) == 1
            for each in (first, leader)
        ),
        "the metric does not name the missing voters",
    )
    vacancies = cluster.metric("fairlead_quorum_vacant_partitions")
    led = await cluster.broker(second).operations.elect("flights", FIRST, ElectionKind.UNCLEAN)
    elections = cluster.metric("fairlead_leader_elections_total", kind="unclean")
    await cluster.start(first, leader)
    await all_return(cluster, topic_id, 1, 2, 3)
    flights = await cluster.led("flights", topic_id)
    last = await flights.produce(b"after")
    copies = await cluster.copied(topic_id, last.base_offset + 1)

    assert (vacancies, elections) == (1, 1)
    assert led.leader is not None
    assert led.leader.broker == second
    assert led.quorum is not None
    assert [voter.broker for voter in led.quorum.voters] == [second]
    assert copies[0] == copies[1] == copies[2]


async def test_an_unreadable_record_takes_only_its_partition_offline(cluster: Cluster) -> None:
    """A partition whose record has an impossible quorum is offline until the record is repaired; others are served."""
    topic_id = await cluster.topic("flights", partitions=2, replication_mode="quorum")
    flights = await cluster.led("flights", topic_id)
    before = await flights.produce(b"before")
    healthy, key = cluster.record(topic_id), cluster.any.metadata.keys.partition(topic_id, FIRST)
    quorum = healthy.quorum
    assert quorum is not None
    broken = encode(healthy).replace(b'"write":%d' % quorum.write, b'"write":9')
    await cluster.store.connect().transact((), (Put(key, broken),))
    await until(
        lambda: all(key in each.broker.metadata.unreadable_partitions for each in cluster.brokers.values()),
        "not every broker has seen the record",
    )
    await until(lambda: cluster.controller.controllership.leaderless == 1, "the partition counts as led")
    other = await cluster.led("flights", topic_id, 1)
    beside = await other.produce(b"beside", partition=1)
    with refuses("no_leader"):
        await flights.produce(b"refused")
    await cluster.store.connect().transact((), (Put(key, encode(vacated(healthy))),))
    await until(lambda: not cluster.any.metadata.unreadable_partitions, "the record is still unreadable")
    flights = await cluster.led("flights", topic_id)
    after = await flights.produce(b"after")
    copies = await cluster.copied(topic_id, after.base_offset + 1)

    assert beside.base_offset == 1
    assert after.base_offset > before.base_offset
    assert copies[0] == copies[1] == copies[2]


async def test_the_description_shows_the_standing_of_each_voter(cluster: Cluster) -> None:
    """Any broker describes how far each replica counts; a stopped voter stays a voter that is not in sync."""
    topic_id = await cluster.topic("flights", replication_mode="quorum")
    flights = await cluster.led("flights", topic_id)
    last = await flights.produce(b"value")
    await cluster.copied(topic_id, last.base_offset + 1)
    leader = cluster.leader(topic_id)
    stopped, other = sorted({1, 2, 3} - {leader or 0})
    async with Admin(address(cluster, other)) as admin:
        whole = await described(admin, lambda found: all(each.near for each in found.standings))
        await cluster.stop(stopped)
        partial = await described(admin, lambda found: stopped not in found.isr)

    assert whole.leader == leader
    assert (whole.write, sorted(whole.voters), sorted(whole.isr)) == (2, [1, 2, 3], [1, 2, 3])
    assert {each.broker: each.counted for each in whole.standings} == dict.fromkeys((1, 2, 3), 2)
    assert all(each.entry_is_current for each in whole.standings)
    assert sorted(partial.voters) == [1, 2, 3]


async def test_groups_transactions_and_digests_work_on_write_quorums(cluster: Cluster) -> None:
    """Transactions become visible to a group, which continues after a leader change, and all copies are equal."""
    topic_id = await cluster.topic("flights", replication_mode="quorum")
    await cluster.led("flights", topic_id)
    urls = ",".join(address(cluster, each) for each in cluster.brokers)
    async with Producer(urls, transactional="flights") as producer:
        await sent_in_transaction(producer, b"one", b"two")
        first = await read_in_group(urls, 1)
        leader = cluster.leader(topic_id)
        assert leader is not None
        await cluster.stop(leader)
        await sent_in_transaction(producer, b"three")
    rest = await read_in_group(urls, 2)
    await cluster.start(leader)
    await all_return(cluster, topic_id, 1, 2, 3)
    # A voter returns before it has every record.
    await cluster.equal(topic_id, Offset(0))
    async with Admin(urls) as admin:
        compared = await admin.compare_replicas("flights", 0)

    assert first + rest == [b"one", b"two", b"three"]
    assert compared.identical


def address(cluster: Cluster, broker: int) -> str:
    """Return the address of a broker for clients."""
    return f"http://{cluster.brokers[broker].addresses.data}"


async def described(admin: Admin, met: Callable[[PartitionDescription], bool]) -> PartitionDescription:
    """Return the description of partition 0 once it meets a condition."""
    found = await admin.describe_partition("flights", 0)
    async with asyncio.timeout(SECONDS_MAX):
        while not met(found):
            await pause(0.05)
            found = await admin.describe_partition("flights", 0)
    return found


async def sent_in_transaction(producer: Producer, *values: bytes) -> None:
    """Write values to partition 0 in one transaction."""
    async with producer.transaction() as transaction:
        for value in values:
            await transaction.send_and_wait("flights", value, partition=0)


async def read_in_group(urls: str, count: int) -> list[bytes]:
    """Return the next committed values of the group, and commit their offsets."""
    values: list[bytes] = []
    async with Consumer(
        urls, group="readers", topics="flights", isolation="read_committed", commit="manual"
    ) as consumer:
        async for record in consumer.records():
            values.append(record.value or b"")
            if len(values) == count:
                break
        await consumer.commit()
    return values
