"""Several brokers on one store: the choice of the controller, and partitions when brokers start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_broker.coordination.protocol import CoordinationUnavailable, TransactionTooLarge, UnknownOutcome
from fairlead_broker.registry.metadata import PartitionChange
from fairlead_broker.registry.records import (
    BrokerState,
    ConfigRecord,
    InSync,
    PartitionRecord,
    TopicState,
    encode,
)
from fairlead_broker.registry.store_writes import Put


async def three(cluster: Any, partitions: int = 3, **config: Any) -> None:
    """Start brokers 1 to 3 and create a topic with a replica on each."""
    for broker in (1, 2, 3):
        await cluster.add(broker)
    await create(cluster, partitions, **config)


async def create(cluster: Any, partitions: int = 3, replication_factor: int = 3, **config: Any) -> None:
    """Create a topic; underscores in configuration keys stand for dots."""
    await cluster.until(lambda metadata: metadata.controller)
    named = {key.replace("_", "."): value for key, value in config.items()}
    request = CreateTopicRequest(
        name="flights", partitions=partitions, replication_factor=replication_factor, config=named
    )
    await cluster.controller.admin.create(request)
    await cluster.until(lambda metadata: len(records(metadata)) == partitions)


def records(metadata: Any) -> list[PartitionRecord]:
    """Return the partition records of the topic in order."""
    if "flights" not in metadata.topics:
        return []
    partitions = metadata.partitions(metadata.topics["flights"].value.topic_id)
    return [partitions[index].value for index in sorted(partitions)]


def leaders(metadata: Any) -> list[int | None]:
    """Return the leader of each partition."""
    return [record.leader and record.leader.broker for record in records(metadata)]


async def join_isr(cluster: Any, life: Any) -> None:
    """Add a broker to the ISR of every partition, as their leaders would."""
    metadata = cluster.metadata
    topic_id, own = metadata.topics["flights"].value.topic_id, life.membership
    entry = InSync(broker=own.broker_id, broker_epoch=own.broker_epoch)
    for index, partition in dict(metadata.partitions(topic_id)).items():
        joined = msgspec.structs.replace(partition.value, isr=(*partition.value.isr, entry), elr=())
        await cluster.store.transact((), (Put(metadata.keys.partition(topic_id, index), encode(joined)),))


async def configure(cluster: Any, key: str, value: int) -> None:
    """Set a configuration key of the cluster."""
    config = ConfigRecord(values={key: value})
    await cluster.store.transact((), (Put(cluster.metadata.keys.cluster_config, encode(config)),))


def every(holds: Callable[[PartitionRecord], bool]) -> Callable[[Any], bool]:
    """Return a condition that is true if the given condition is true for all partitions."""
    return lambda metadata: bool(records(metadata)) and all(holds(record) for record in records(metadata))


def raising(error: Exception, *, applied: bool) -> Callable[[Any], Any]:
    """Return a fault that raises an error after the call, or instead of it."""

    async def fault(call: Any) -> Any:
        if applied:
            await call()
        raise error

    return fault


async def test_one_of_many_is_the_controller(cluster: Any) -> None:
    """Exactly one broker is the controller.

    When the controller stops, another broker takes over with a higher epoch.
    """
    await asyncio.gather(*(cluster.add(broker) for broker in (1, 2, 3)))
    await cluster.until(lambda metadata: metadata.controller)
    first = cluster.controller
    holders = [life for life in cluster.lives.values() if life.controllership.term is not None]
    epoch = first.mirror.metadata.controller_epoch.value.epoch
    await cluster.kill(first.membership.broker_id)
    await cluster.until(
        lambda metadata: (
            metadata.controller and metadata.controller.value.broker != first.membership.broker_id
        )
    )

    assert holders == [first]
    assert cluster.controller is not first
    assert cluster.metadata.controller_epoch.value.epoch == epoch + 1


async def test_replicas_are_spread_and_the_first_ones_lead(cluster: Any) -> None:
    """The leaders of three partitions on three brokers are spread, one per broker."""
    await three(cluster)

    assert sorted(leaders(cluster.metadata)) == [1, 2, 3]
    assert all(len(record.isr) == 3 for record in records(cluster.metadata))


@pytest.mark.parametrize("broker", [1, 2, 3])
async def test_a_lost_broker_leads_nothing_and_is_waited_for_no_more(cluster: Any, broker: int) -> None:
    """A lost broker loses its leaderships and leaves the ISR, even if it was the controller."""
    await three(cluster, partitions=130)
    before = records(cluster.metadata)
    await cluster.kill(broker)
    await cluster.until(
        every(
            lambda record: (
                record.leader is not None
                and record.leader.broker != broker
                and broker not in {entry.broker for entry in record.isr}
            )
        )
    )
    after = records(cluster.metadata)

    for old, new in zip(before, after, strict=True):
        assert old.leader is not None
        moved = old.leader.broker == broker
        assert new.leader_epoch == old.leader_epoch + moved
        assert len(new.isr) == 2


async def test_elections_are_written_before_other_changes(cluster: Any) -> None:
    """After the loss of a broker, elections are written before changes that affect only the ISR."""
    await three(cluster, partitions=300)
    controller = cluster.controller
    victim = next(broker for broker in (1, 2, 3) if cluster.lives[broker] is not controller)
    elected: list[bool] = []

    def note(update: Any) -> None:
        elected.extend(
            change.before.value.leader_epoch < change.after.value.leader_epoch
            for change in update.changes
            if isinstance(change, PartitionChange)
        )

    controller.mirror.subscribe(note)
    await cluster.kill(victim)
    await cluster.until(every(lambda record: victim not in {entry.broker for entry in record.isr}))

    assert (len(elected), sum(elected)) == (300, 100)
    # A transaction has sixty operations, so the second transaction with elections also contains other changes.
    assert all(elected[:60])
    assert not any(elected[120:])


async def test_a_stopping_broker_gives_up_its_leaderships_while_it_still_serves(cluster: Any) -> None:
    """A stopping broker gives up its leaderships and leaves the ISR in one write, before its lease ends."""
    await three(cluster)
    await cluster.lives[2].membership.update(
        lambda record: msgspec.structs.replace(record, state=BrokerState.STOPPING)
    )
    await cluster.until(every(lambda record: 2 not in {entry.broker for entry in record.isr}))

    assert 2 not in leaders(cluster.metadata)
    assert sorted(record.leader_epoch for record in records(cluster.metadata)) == [0, 0, 1]


async def test_a_broker_leads_when_its_directory_appears(cluster: Any, kit: Any) -> None:
    """A broker without a directory in its registration leads nothing until its registration has a directory."""
    await three(cluster, min_insync_replicas=1)
    for broker in (1, 2):
        await cluster.kill(broker)
    await cluster.until(every(lambda record: len(record.isr) == 1))
    before = await cluster.kill(3)
    await cluster.add(4)
    await cluster.until(every(lambda record: record.leader is None))
    life = await cluster.add(3, directories=())
    # A controller that creates a topic has applied all earlier changes.
    await cluster.controller.admin.create(CreateTopicRequest(name="later", partitions=1))
    early = leaders(cluster.metadata)
    directories = kit.registration(before, "d3").directories
    await life.membership.update(lambda record: msgspec.structs.replace(record, directories=directories))
    await cluster.until(every(lambda record: record.leader is not None))
    later = cluster.metadata.partitions(cluster.metadata.topics["later"].value.topic_id)

    assert early == [None] * 3
    assert set(leaders(cluster.metadata)) == {3}
    assert [each.value.replicas[0].broker for each in later.values()] == [4]


async def test_a_broker_that_comes_back_after_all_were_gone_leads_if_it_was_the_last(cluster: Any) -> None:
    """The last in-sync broker leads when it returns, and no incomplete replica leads before then."""
    await three(cluster, min_insync_replicas=1)
    epochs = {broker: await cluster.kill(broker) for broker in (1, 2)}
    await cluster.until(every(lambda record: len(record.isr) == 1))
    epochs[3] = await cluster.kill(3)
    await cluster.add(1, last_broker_epoch=epochs[1])
    await cluster.until(every(lambda record: record.leader is None))
    await cluster.add(3, last_broker_epoch=epochs[3])
    await cluster.until(every(lambda record: record.leader is not None))

    assert set(leaders(cluster.metadata)) == {3}


async def test_an_eligible_replica_leads_when_the_last_in_sync_is_gone(cluster: Any) -> None:
    """An eligible replica leads when the last in-sync replica is lost, because it has every acknowledged record."""
    await three(cluster, min_insync_replicas=2)
    epochs = {broker: await cluster.kill(broker) for broker in (1, 2)}
    await cluster.until(every(lambda record: len(record.isr) == 1 and bool(record.elr)))
    await cluster.kill(3)
    await cluster.add(2, last_broker_epoch=epochs[2])
    await cluster.until(every(lambda record: record.leader is not None and record.leader.broker == 2))

    assert set(leaders(cluster.metadata)) == {2}


async def test_what_another_controller_has_begun_is_finished(cluster: Any) -> None:
    """A new controller finishes a topic that the previous controller was creating."""
    await cluster.add(1)
    await cluster.add(2)
    await cluster.until(lambda metadata: metadata.controller)
    admin, clock = cluster.controller.admin, cluster.clock
    request = CreateTopicRequest(name="flights", partitions=2, replication_factor=2)
    record, _ = await admin.create(request, dry_run=True)
    key = cluster.metadata.keys.topic("flights")
    await cluster.store.transact((), (Put(key, encode(record)),))
    before = cluster.controller.membership.broker_id
    await cluster.until(lambda metadata: "flights" in metadata.topics)
    clock.seconds += 6
    await cluster.kill(before)
    await cluster.add(7)
    await cluster.until(lambda metadata: metadata.topics["flights"].value.state is TopicState.READY)

    assert set(leaders(cluster.metadata)) <= set(cluster.lives)


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        [raising(UnknownOutcome("lost"), applied=True)],
        [raising(UnknownOutcome("lost"), applied=False)],
        [raising(CoordinationUnavailable("away"), applied=False)] * 2,
        [raising(TransactionTooLarge("bytes", 2, 1), applied=False)] * 3,
    ],
    ids=["applied", "not-applied", "away", "too-large"],
)
async def test_a_store_that_misbehaves_only_delays(cluster: Any, faults: list[Any]) -> None:
    """A failing store only delays the controller, regardless of the outcome of its writes."""
    await three(cluster, partitions=20)
    controller = cluster.controller
    victim = next(broker for broker in (1, 2, 3) if cluster.lives[broker] is not controller)
    controller.coordination.faults["transact"] = list(faults)
    await cluster.kill(victim)
    await cluster.until(every(lambda record: victim not in {entry.broker for entry in record.isr}))

    assert victim not in leaders(cluster.metadata)
    assert {record.leader_epoch for record in records(cluster.metadata)} == {0, 1}


async def test_the_longest_log_leads_where_losing_records_is_allowed(cluster: Any, kit: Any) -> None:
    """An unclean election waits for the end of the lost leader's lease, and then chooses the longest log.

    After an unclean election, the ISR contains only the new leader, whose epoch is above every reported epoch.
    """
    for broker in (1, 2, 3):
        await cluster.add(broker, lease_seconds=2 * kit.ttl_seconds)
    await create(cluster, partitions=1, min_insync_replicas=1, unclean_leader_election_enable="true")
    [record] = records(cluster.metadata)
    last = record.replicas[0].broker
    epochs = {}
    for replica in record.replicas[1:]:
        epochs[replica.broker] = await cluster.kill(replica.broker)
    await cluster.until(every(lambda record: len(record.isr) == 1))
    await cluster.kill(last)
    for broker, epoch in epochs.items():
        life = await cluster.add(broker, last_broker_epoch=epoch)
        life.ends.update({each: kit.log_end(0, 10 * each) for each in epochs})
        life.ends[max(epochs)] = kit.log_end(5, 7)
    await cluster.until(every(lambda record: record.leader is None))
    waited = leaders(cluster.metadata)
    await configure(cluster, "unclean.leader.election.delay.ms", 0)
    lost_at = cluster.clock.seconds
    # The lost leader may merely be isolated, and then considers itself the leader until the end of its own lease.
    for _ in range(4):
        cluster.clock.seconds += kit.ttl_seconds / 2
        for life in cluster.lives.values():
            await life.membership.keep_alive()
    await cluster.until(every(lambda record: record.leader is not None))
    [record] = records(cluster.metadata)
    # When the controller has handled this later change, it has also counted the election.
    await cluster.add(4)

    assert waited == [None]
    surveyed_at = [at for life in cluster.lives.values() for at in life.surveyed_at]
    assert min(surveyed_at) == lost_at + 2 * kit.ttl_seconds
    assert leaders(cluster.metadata) == [max(epochs)]
    assert record.isr == (record.leader,)
    assert record.elr == ()
    assert record.leader_epoch == 6
    assert sum(life.elections.get("unclean", 0) for life in cluster.lives.values()) == 1


async def test_leaders_go_back_to_the_preferred_replicas(cluster: Any) -> None:
    """Leadership returns to a preferred leader at the next check after it is back in sync."""
    await three(cluster, min_insync_replicas=1)
    epoch = await cluster.kill(2)
    await cluster.until(every(lambda record: len(record.isr) == 2))
    life = await cluster.add(2, last_broker_epoch=epoch)
    await join_isr(cluster, life)
    astray = leaders(cluster.metadata)
    await configure(cluster, "leader.imbalance.check.interval.seconds", 1)
    cluster.clock.seconds += 2
    await cluster.until(lambda metadata: 2 in leaders(metadata))

    assert 2 not in astray
    assert sorted(leaders(cluster.metadata)) == [1, 2, 3]


async def test_a_partition_that_is_drained_gets_its_preferred_leader_later(cluster: Any) -> None:
    """A preferred leader whose election is due in the same turn as a drain is elected in a later turn."""
    await three(cluster, min_insync_replicas=1)
    epoch = await cluster.kill(2)
    await cluster.until(every(lambda record: len(record.isr) == 2))
    await join_isr(cluster, await cluster.add(2, last_broker_epoch=epoch))
    await cluster.add(4)
    [drained] = [
        record.replicas[2].broker for record in records(cluster.metadata) if record.replicas[0].broker == 2
    ]
    cluster.clock.seconds += 2
    keys = cluster.metadata.keys
    often = ConfigRecord(values={"leader.imbalance.check.interval.seconds": 1})
    leaving = ConfigRecord(values={"draining": "true"})
    both = (
        Put(keys.cluster_config, encode(often)),
        Put(keys.broker_config(drained), encode(leaving)),
    )
    await cluster.store.transact((), both)
    await cluster.until(every(lambda record: bool(record.adding)))
    cluster.clock.seconds += 2
    await cluster.until(lambda metadata: 2 in leaders(metadata))

    assert all(drained in record.removing for record in records(cluster.metadata))


async def test_calls_wait_for_the_next_controller(cluster: Any) -> None:
    """A call returns at once while there is a controller, and otherwise waits until a broker becomes the controller."""
    await asyncio.gather(*(cluster.add(broker) for broker in (1, 2)))
    await cluster.until(lambda metadata: metadata.controller)
    first = cluster.controller
    [second] = [life for life in cluster.lives.values() if life is not first]
    await second.controllership.known(0)
    await cluster.kill(first.membership.broker_id)
    page = await cluster.store.list("", limit=1)
    await second.mirror.wait_for(page.revision)
    await second.controllership.known(60)

    assert second.controllership.term is not None
