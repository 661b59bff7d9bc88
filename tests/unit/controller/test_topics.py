from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId
from fairlead_broker.controller.topics import (
    TOMBSTONE_SECONDS,
    placeable,
    plan_alteration,
    plan_completion,
    plan_creation,
    plan_deletion,
    plan_forgetting,
    plan_growth,
)
from fairlead_broker.registry.records import BrokerState, DeletedTopicRecord, DurabilityState, TopicState
from fairlead_broker.registry.store_writes import Transaction
from refusals import raises

NAME = "flights"


def run(world: Any, plan: Sequence[Transaction]) -> list[bool]:
    """Run every transaction of a plan."""
    return [world.run(transaction) for transaction in plan]


def create(world: Any, kit: Any, partitions: int = 3, **about: Any) -> None:
    """Create the topic of the tests."""
    assert all(run(world, plan_creation(world.planning(), NAME, kit.new_topic(partitions, **about))))


def complete(world: Any, **about: Any) -> Sequence[Transaction]:
    """Return the plan that completes the topic of the tests."""
    topic = world.topic(NAME)
    return plan_completion(world.planning(**about), NAME, topic, world.partitions(topic.value.topic_id))


def test_a_created_topic_is_ready_with_all_of_its_partitions(world: Any, kit: Any) -> None:
    """A small topic is created in three transactions: its announcement, its partitions, and its state `ready`."""
    epoch = world.metadata.brokers[1].create_revision
    results = run(world, plan_creation(world.planning(), NAME, kit.new_topic(3, durability="replicated")))
    topic, partitions = world.topic(NAME).value, world.partitions()

    assert results == [True] * 3
    assert (topic.state, topic.partitions, topic.growing_to) == (TopicState.READY, 3, None)
    assert list(partitions) == [0, 1, 2]
    for each in partitions.values():
        record = each.value
        assert record.leader == kit.entries((1, epoch))[0]
        assert record.isr == kit.entries((1, epoch))
        assert record.leader_epoch == 0
        assert [(r.broker, r.directory, r.generation) for r in record.replicas] == [(1, "d1", 0)]
        assert (record.min_isr, record.durability, record.unclean) == (1, DurabilityState.REPLICATED, False)
    assert complete(world) == ()


def test_replicas_lie_on_different_brokers_and_in_their_directories(world: Any, kit: Any) -> None:
    """Replicas are placed on distinct brokers, starting at the planned position, each in its directory, in sync."""
    epochs = {1: world.metadata.brokers[1].create_revision}
    for broker in (2, 3):
        epochs[broker] = world.register(broker, kit.registration(f"d{broker}"))
    record = kit.new_topic(3, replication_factor=3)
    assert all(run(world, plan_creation(world.planning(start_index=1), NAME, record)))
    partitions = [each.value for each in world.partitions().values()]

    assert [each.leader.broker for each in partitions] == [2, 3, 1]
    assert all({(e.broker, e.broker_epoch) for e in each.isr} == set(epochs.items()) for each in partitions)
    assert all(r.directory == f"d{r.broker}" for each in partitions for r in each.replicas)
    assert [each.min_isr for each in partitions] == [2] * 3


def test_new_partitions_with_a_quorum_have_all_replicas_as_voters(world: Any, kit: Any) -> None:
    """A partition with a quorum begins with leader epoch 1, no ISR, and every replica as a voter (quorum Q1)."""
    epochs = {1: world.metadata.brokers[1].create_revision}
    for broker in (2, 3):
        epochs[broker] = world.register(broker, kit.registration(f"d{broker}"))
    create(world, kit, 1, replication_factor=3, replication_mode="quorum")
    [record] = [each.value for each in world.partitions().values()]

    assert record.leader == record.quorum.voters[0]
    assert (record.leader_epoch, record.isr, record.elr) == (1, (), ())
    assert {(voter.broker, voter.broker_epoch) for voter in record.quorum.voters} == set(epochs.items())
    assert (record.quorum.write, record.min_isr, record.durability) == (2, 2, DurabilityState.SYNCED)


def test_many_partitions_take_sixty_a_transaction(world: Any, kit: Any) -> None:
    """130 partitions take five transactions of at most sixty partitions, and more with a lower limit."""
    record = kit.new_topic(130)
    sizes = [len(each.success) for each in plan_creation(world.planning(), NAME, record)]
    halved = [len(each.success) for each in plan_creation(world.planning(partitions_max=30), NAME, record)]

    assert sizes == [1, 60, 60, 10, 1]
    assert halved == [1, 30, 30, 30, 30, 10, 1]


def test_a_name_is_created_once(world: Any, kit: Any) -> None:
    """Of two plans that create a topic with the same name, the second changes nothing."""
    first = plan_creation(world.planning(), NAME, kit.new_topic(3))
    other = msgspec.structs.replace(
        kit.new_topic(5), topic_id=TopicId("00000000-0000-4000-8000-000000000000")
    )
    second = plan_creation(world.planning(), NAME, other)
    results = run(world, [first[0], *second, *first[1:]])

    assert results == [True, *[False] * len(second), True, True]
    assert world.topic(NAME).value.topic_id == kit.topic_id


def test_an_id_with_a_tombstone_is_not_used_again(world: Any, kit: Any) -> None:
    """The id of a deleted topic is not used again."""
    create(world, kit)
    plan = plan_creation(world.planning(), NAME, kit.new_topic(3))
    assert all(run(world, plan_deletion(world.planning(), NAME, world.topic(NAME), world.partitions())))

    assert run(world, plan) == [False] * 3


def test_growth_keeps_what_is_there(world: Any, kit: Any) -> None:
    """Growth changes the number of usable partitions last, and keeps existing partitions."""
    create(world, kit, 2)
    before = dict(world.partitions())
    plan = plan_growth(world.planning(), NAME, world.topic(NAME), world.partitions(), 5)
    counts = []
    for transaction in plan:
        assert world.run(transaction)
        counts.append((world.topic(NAME).value.partitions, world.topic(NAME).value.growing_to))

    assert counts == [(2, 5), (2, 5), (5, None)]
    assert {n: world.partitions()[n] for n in before} == before
    assert len(world.partitions()) == 5
    assert complete(world) == ()


def test_growing_to_the_same_count_is_nothing_to_do(world: Any, kit: Any) -> None:
    """Growth to the current number of partitions has an empty plan."""
    create(world, kit, 2)

    assert plan_growth(world.planning(), NAME, world.topic(NAME), world.partitions(), 2) == ()


def test_shrinking_is_a_mistake_of_the_caller(world: Any, kit: Any) -> None:
    """A plan with fewer partitions is rejected by an assertion, because callers refuse such requests."""
    create(world, kit, 2)

    with raises(AssertionError, 1):
        plan_growth(world.planning(), NAME, world.topic(NAME), world.partitions(), 1)


def test_an_alteration_reaches_the_partitions(world: Any, kit: Any) -> None:
    """An alteration updates configuration in partition records and adds partitions in one plan."""
    create(world, kit, 2, durability="replicated")
    config = {"durability": "synced", "segment.bytes": "1048576"}
    plan = plan_alteration(
        world.planning(), NAME, world.topic(NAME), world.partitions(), partition_count=3, config=config
    )
    results = run(world, plan)
    durability = [world.partitions()[n].value.durability for n in range(3)]

    assert results == [True] * 4
    assert world.topic(NAME).value.config == config
    assert durability == [DurabilityState.SYNCING, DurabilityState.SYNCING, DurabilityState.SYNCED]
    assert complete(world) == ()


def test_a_changed_default_of_the_cluster_reaches_the_partitions(world: Any, kit: Any) -> None:
    """A changed default of the cluster applies to partitions whose topic does not set the value."""
    for broker in (2, 3):
        world.register(broker, kit.registration(f"d{broker}"))
    create(world, kit, 2, replication_factor=3)
    world.put(kit.keys.cluster_config, kit.cluster_config(min_insync_replicas="3"))
    results = run(world, complete(world))

    assert results == [True]
    assert [each.value.min_isr for each in world.partitions().values()] == [3, 3]


def test_a_partition_without_a_live_leader_gets_its_settings_later(world: Any, kit: Any) -> None:
    """A partition without a live leader gets its settings after the election."""
    create(world, kit, 3)
    settings = kit.cluster_config(durability="replicated", **{"unclean.leader.election.enable": "true"})
    for index, durability in ((1, DurabilityState.SYNCED), (2, DurabilityState.REPLICATED)):
        record = world.partitions()[index].value
        record = msgspec.structs.replace(record, leader=None, durability=durability)
        world.put(kit.keys.partition(kit.topic_id, PartitionIndex(index)), record)
    world.register(1, kit.registration())
    world.put(kit.keys.cluster_config, settings)
    assert all(run(world, complete(world)))
    found = [each.value for _, each in sorted(world.partitions().items())]

    assert [each.durability for each in found] == [
        DurabilityState.SYNCED,
        DurabilityState.SYNCED,
        DurabilityState.REPLICATED,
    ]
    assert [each.unclean for each in found] == [False, False, True]


def test_a_deleted_topic_leaves_its_tombstone(world: Any, kit: Any) -> None:
    """The last transaction of a deletion frees the name and writes the tombstone of the topic id."""
    create(world, kit, 70)
    plan = plan_deletion(world.planning(), NAME, world.topic(NAME), world.partitions())
    seen = []
    for transaction in plan:
        assert world.run(transaction)
        topic = world.metadata.topics.get(NAME)
        seen.append(
            (
                topic.value.state if topic else None,
                len(world.partitions()),
                kit.topic_id in world.metadata.deleted_topics,
            )
        )

    deleting = TopicState.DELETING
    assert seen == [(deleting, 70, False), (deleting, 10, False), (deleting, 0, False), (None, 0, True)]
    assert world.metadata.deleted_topics[kit.topic_id].value == DeletedTopicRecord(
        name=NAME, deleted_us=kit.now_us
    )


def growth(world: Any, kit: Any) -> Sequence[Transaction]:
    """Return a plan for growth from 3 to 150 partitions."""
    create(world, kit)
    return plan_growth(world.planning(), NAME, world.topic(NAME), world.partitions(), 150)


def creation(world: Any, kit: Any) -> Sequence[Transaction]:
    """Return a plan for a topic of 150 partitions."""
    return plan_creation(world.planning(), NAME, kit.new_topic(150))


def alteration(world: Any, kit: Any) -> Sequence[Transaction]:
    """Return a plan that changes the configuration of 150 partitions."""
    create(world, kit, 150)
    return plan_alteration(
        world.planning(),
        NAME,
        world.topic(NAME),
        world.partitions(),
        partition_count=150,
        config={"durability": "replicated"},
    )


def deletion(world: Any, kit: Any) -> Sequence[Transaction]:
    """Return a plan that deletes 150 partitions."""
    create(world, kit, 150)
    return plan_deletion(world.planning(), NAME, world.topic(NAME), world.partitions())


@pytest.mark.parametrize("make", [creation, growth, alteration, deletion])
@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_cut_off_anywhere_completion_comes_to_the_same_end(
    world: Any, kit: Any, make: Callable[[Any, Any], Sequence[Transaction]], cut: int
) -> None:
    """A new controller completes a plan that was interrupted after any transaction."""
    plan = make(world, kit)
    assert len(plan) > cut - (make is alteration), "the plan has more transactions than are run"
    assert all(run(world, plan[:cut]))
    world.start_term()
    # A late transaction of the previous controller is refused.
    assert run(world, plan[cut:]) == [False] * len(plan[cut:])
    while NAME in world.metadata.topics and (rest := complete(world, partitions_max=40)):
        assert all(run(world, rest))

    if make is deletion:
        assert NAME not in world.metadata.topics
        assert not world.partitions()
        assert kit.topic_id in world.metadata.deleted_topics
    else:
        topic = world.topic(NAME).value
        assert (topic.state, topic.partitions, topic.growing_to) == (TopicState.READY, 150, None)
        assert sorted(world.partitions()) == list(range(150))
        durability = DurabilityState.REPLICATED if make is alteration else DurabilityState.SYNCED
        assert {each.value.durability for each in world.partitions().values()} == {durability}


def test_completion_fills_every_gap(world: Any, kit: Any) -> None:
    """The completion of a topic's creation writes the missing partitions, and leaves the other partitions unchanged."""
    plan = plan_creation(world.planning(partitions_max=2), NAME, kit.new_topic(8))
    assert run(world, [plan[0], plan[2], plan[4]]) == [True] * 3
    kept = dict(world.partitions())
    assert all(run(world, complete(world)))

    assert sorted(kept) == [2, 3, 6, 7]
    assert {n: world.partitions()[n] for n in kept} == kept
    assert sorted(world.partitions()) == list(range(8))


def test_a_topic_being_created_can_be_deleted(world: Any, kit: Any) -> None:
    """A topic that is being created can be deleted, and the rest of its creation is refused."""
    plan = plan_creation(world.planning(), NAME, kit.new_topic(100))
    assert run(world, plan[:2]) == [True, True]
    doom = plan_deletion(world.planning(), NAME, world.topic(NAME), world.partitions())
    assert world.run(doom[0])
    late = run(world, plan[2:])
    results = run(world, doom[1:])

    assert late == [False, False]
    assert results == [True, True]
    assert not world.partitions()


def test_deleting_again_completes_the_deletion(world: Any, kit: Any) -> None:
    """A second plan for a deletion completes it without another announcement."""
    create(world, kit)
    assert world.run(plan_deletion(world.planning(), NAME, world.topic(NAME), world.partitions())[0])
    plan = plan_deletion(world.planning(), NAME, world.topic(NAME), world.partitions())

    assert len(plan) == 2
    assert run(world, plan) == [True, True]


def test_a_leaders_write_in_between_holds_the_settings_back(world: Any, kit: Any) -> None:
    """If a leader has written since the plan, the controller's write fails, and a new plan uses the new record."""
    create(world, kit, 1)
    world.put(kit.keys.cluster_config, kit.cluster_config(durability="replicated"))
    [planned] = complete(world)
    world.put(kit.keys.partition(kit.topic_id, PartitionIndex(0)), world.partitions()[0].value)

    assert not world.run(planned)
    assert run(world, complete(world)) == [True]


def test_a_dead_leader_is_not_installed(world: Any, kit: Any) -> None:
    """Partitions that are planned for an ended incarnation are not written."""
    plan = plan_creation(world.planning(), NAME, kit.new_topic(1))
    world.register(1, kit.registration())

    assert run(world, plan[:2]) == [True, False]
    assert run(world, complete(world)) == [True, True]


def test_new_partitions_wait_for_brokers(world: Any, kit: Any) -> None:
    """An incomplete creation stays incomplete while there are fewer brokers than replicas."""
    second = world.register(2, kit.registration("d2"))
    plan = plan_creation(world.planning(), NAME, kit.new_topic(1, replication_factor=2))
    assert world.run(plan[0])
    world.delete(kit.keys.broker(BrokerId(2)))
    waiting = complete(world)
    world.register(2, kit.registration("d2", last_broker_epoch=second))

    assert waiting == ()
    assert run(world, complete(world)) == [True, True]


def test_partitions_lie_on_the_brokers_that_a_client_chose(world: Any, kit: Any) -> None:
    """Partitions of a new topic and added partitions get the chosen brokers, which the topic then forgets."""
    for broker in (2, 3):
        world.register(broker, kit.registration(f"d{broker}"))
    chosen = {PartitionIndex(0): (BrokerId(3), BrokerId(1)), PartitionIndex(1): (BrokerId(1), BrokerId(2))}
    record = msgspec.structs.replace(kit.new_topic(2, replication_factor=2), assigned=chosen)
    assert all(run(world, plan_creation(world.planning(start_index=1), NAME, record)))
    added = {PartitionIndex(2): (BrokerId(2), BrokerId(3))}
    topic = world.topic(NAME)
    growing = plan_alteration(
        world.planning(),
        NAME,
        topic,
        world.partitions(),
        partition_count=3,
        config={},
        assigned=added,
    )
    assert world.run(growing[0])
    announced = world.topic(NAME).value.assigned
    assert all(run(world, complete(world)))
    replicas = {
        index: tuple(each.broker for each in partition.value.replicas)
        for index, partition in world.partitions().items()
    }

    assert topic.value.assigned is None
    assert announced == added
    assert replicas == chosen | added
    assert world.topic(NAME).value.assigned is None


@pytest.mark.parametrize("make", [creation, growth])
def test_what_is_placed_already_waits_for_no_broker(
    world: Any, kit: Any, make: Callable[[Any, Any], Sequence[Transaction]]
) -> None:
    """A topic whose partitions are all written becomes ready even if a planned broker is gone."""
    plan = make(world, kit)
    assert all(run(world, plan[:-1]))
    world.delete(kit.keys.broker(BrokerId(1)))
    world.start_term()
    done = run(world, complete(world))
    topic = world.topic(NAME).value

    assert done == [True]
    assert (topic.state, topic.partitions, topic.growing_to) == (TopicState.READY, 150, None)


def test_only_running_brokers_with_a_directory_take_replicas(world: Any, kit: Any) -> None:
    """Brokers that drain, stop or lack a healthy directory get no new replicas."""
    world.register(2, kit.registration("d2", state=BrokerState.DRAINING))
    world.register(3, kit.registration("d3", state=BrokerState.STOPPING))
    world.register(4, msgspec.structs.replace(kit.registration("d4"), directories=()))
    world.register(5, kit.registration("d5", rack="a"))

    assert [(each.broker, each.rack) for each in placeable(world.metadata.brokers)] == [(1, None), (5, "a")]


def test_tombstones_are_forgotten_after_fourteen_days(world: Any, kit: Any) -> None:
    """Tombstones of deleted topics are deleted fourteen days after their last change."""
    ids = [TopicId(f"00000000-0000-4000-8000-{n:012}") for n in range(130)]
    for n, topic_id in enumerate(ids):
        record = DeletedTopicRecord(name=f"t{n}", deleted_us=kit.now_us + n)
        world.put(kit.keys.deleted_topic(topic_id), record)
    later = kit.now_us + TOMBSTONE_SECONDS * 1_000_000
    deleted = world.metadata.deleted_topics
    none_yet = plan_forgetting(world.planning(now_us=later - 1), deleted)
    plan = plan_forgetting(world.planning(now_us=later + 119), deleted)
    results = run(world, plan)

    assert none_yet == ()
    assert results == [True, True]
    assert list(world.metadata.deleted_topics) == ids[120:]
