"""The single permit to restart a broker: which broker gets it, and when it ends."""

from __future__ import annotations

from typing import Any

from fairlead_api.identifiers import BrokerId
from fairlead_broker.registry.records import BrokerState
from operations_kit import begin, catch_up, isr, partitions_of, refusal, replicas
from refusals import missing


async def test_one_broker_may_restart_at_a_time(cluster: Any) -> None:
    """A permit ends when its broker has restarted and all replicas are in sync again."""
    await begin(cluster, brokers=3, replication_factor=3, min_insync_replicas="2")
    controller = cluster.controller
    first, second = (BrokerId(each) for each in (1, 2, 3) if each != controller.membership.broker_id)
    permit = await controller.operations.request_restart(first)
    again = await controller.operations.request_restart(first)
    busy = await refusal(controller.operations.request_restart(second))
    epoch = await cluster.kill(first)
    await cluster.until(lambda metadata: first not in isr(partitions_of(metadata)[0]))
    needed = await refusal(controller.operations.request_restart(second))
    await cluster.add(first, last_broker_epoch=epoch)
    behind = await refusal(controller.operations.request_restart(second))
    await catch_up(cluster)
    await cluster.until(lambda metadata: len(isr(partitions_of(metadata)[0])) == 3)
    next_permit = await controller.operations.request_restart(second)

    assert (permit.broker, permit.seconds) == (first, 300)
    assert again == permit
    assert {each.code for each in (busy, needed, behind)} == {"restart_refused"}
    assert missing(busy.detail, first) == []
    assert needed.data["partitions"] == ["flights-0"]
    assert next_permit.broker == second


async def test_a_lost_broker_does_not_count_as_in_sync(cluster: Any) -> None:
    """A lost or restarted broker does not count as in sync, even if partition records still name it."""
    await begin(cluster, brokers=3, replication_factor=3, min_insync_replicas="2")
    operations, leader = cluster.controller.operations, cluster.controller.membership.broker_id
    lost, asked = (BrokerId(each) for each in (1, 2, 3) if each != leader)
    for life in cluster.lives.values():
        _, controllership = life.tasks
        controllership.cancel()
    metadata = cluster.controller.mirror.metadata
    epoch = await cluster.kill(lost)
    await cluster.until(lambda metadata: lost not in metadata.brokers)
    gone = await refusal(operations.request_restart(asked))
    await cluster.add(lost, last_broker_epoch=epoch, state=BrokerState.STOPPING)
    back = await refusal(operations.request_restart(asked))

    assert isr(partitions_of(metadata)[0]) == [1, 2, 3]
    assert [each.data["partitions"] for each in (gone, back)] == [["flights-0"], ["flights-0"]]


async def pass_time(cluster: Any, seconds: int) -> None:
    """Advance the clock while every broker renews its lease, and expire other leases."""
    for _ in range(seconds):
        cluster.clock.seconds += 1
        for life in cluster.lives.values():
            await life.membership.keep_alive()
    await cluster.store.expire_leases()


async def test_a_permit_ends_by_itself_five_minutes_after_it_was_asked_for_last(cluster: Any) -> None:
    """A permit ends five minutes after its last request, so that a pod that never restarts blocks no others."""
    await begin(cluster, brokers=3, replication_factor=1)
    operations = cluster.controller.operations
    first, second = (BrokerId(each) for each in (1, 2, 3) if each != cluster.controller.membership.broker_id)
    await operations.request_restart(first)
    await pass_time(cluster, 200)
    await operations.request_restart(first)
    await pass_time(cluster, 200)
    busy = await refusal(operations.request_restart(second))
    await pass_time(cluster, 101)
    permit = await operations.request_restart(second)

    assert missing(busy.detail, first) == []
    assert permit.broker == second


async def test_a_permit_ends_when_its_broker_is_unregistered(cluster: Any) -> None:
    """A permit ends when its broker is unregistered, because a removed broker never restarts."""
    await begin(cluster, brokers=3, replication_factor=1)
    operations = cluster.controller.operations
    kept = replicas(partitions_of(cluster.metadata)[0])
    leader = cluster.controller.membership.broker_id
    leaving = BrokerId(next(each for each in (1, 2, 3) if each not in (*kept, leader)))
    staying = BrokerId(next(each for each in (1, 2, 3) if each not in (leaving, leader)))
    await operations.cordon(leaving)
    await operations.request_restart(leaving)
    await cluster.kill(leaving)
    await cluster.until(lambda metadata: leaving not in metadata.brokers)
    busy = await refusal(operations.request_restart(staying))
    await operations.unregister(leaving)
    permit = await operations.request_restart(staying)

    assert missing(busy.detail, leaving) == []
    assert permit.broker == staying


async def test_partitions_with_no_replica_to_spare_forbid_no_restart(cluster: Any) -> None:
    """A partition without a spare replica does not prevent a restart, because waiting would not help."""
    await begin(cluster, brokers=1, replication_factor=1)

    assert (await cluster.controller.operations.request_restart(BrokerId(1))).broker == 1
