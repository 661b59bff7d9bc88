from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.identifiers import PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.records import ConfigRecord, DurabilityState, TopicRecord, TopicState, encode
from fairlead_broker.registry.store_writes import Delete, Put
from refusals import missing

OTHER_ID = TopicId("00000000-0000-4000-8000-00000000abcd")


def request(name: str = "flights", partitions: int = 3, **about: Any) -> CreateTopicRequest:
    """Return a request for a topic."""
    return CreateTopicRequest(name=name, partitions=partitions, **about)


async def refusal(call: Awaitable[object]) -> ProblemError:
    """Await a call that must be refused, and return its problem."""
    with pytest.raises(ProblemError) as refused:
        await call
    return refused.value


async def test_a_topic_is_created_with_its_partitions(life: Any, clock: Any) -> None:
    """A created topic is ready and mirrored when the call returns."""
    record, created = await life.admin.create(request(config={"segment.bytes": 1048576}))
    partitions = life.mirror.metadata.partitions(record.topic_id)

    assert created
    assert record == life.mirror.metadata.topics["flights"].value
    assert (record.state, record.partitions, record.replication_factor) == (TopicState.READY, 3, 1)
    assert record.config == {"segment.bytes": "1048576"}
    assert record.created_us == clock.now_us()
    assert sorted(partitions) == [0, 1, 2]
    assert {each.value.leader.broker_epoch for each in partitions.values()} == {life.membership.broker_epoch}


async def test_the_same_specification_again_is_not_created_but_returned(life: Any) -> None:
    """A request for a topic that exists with an equal specification returns the existing topic.

    A number and its text are equal values in a topic's specification.
    """
    first, _ = await life.admin.create(request(config={"segment.bytes": 1048576}))
    again = await life.admin.create(request(config={"segment.bytes": "1048576"}))
    named = await life.admin.create(request(config={"segment.bytes": "1048576"}, replication_factor=1))

    assert again == named == (first, False)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"partitions": 4}, "partitions is 3, but the request has 4"),
        ({"config": {}}, "segment.bytes 1048576"),
        ({"config": {"segment.bytes": 2097152}}, "segment.bytes 1048576 2097152"),
        (
            {"config": {"segment.bytes": 1048576, "durability": "replicated"}},
            "durability replicated",
        ),
        ({"replication_factor": 7}, "replication_factor 1 7"),
    ],
)
async def test_another_specification_is_refused_with_the_difference(
    life: Any, other: dict[str, Any], difference: str
) -> None:
    """A request for a topic that exists with a different specification is refused with the difference."""
    first, _ = await life.admin.create(request(config={"segment.bytes": 1048576}))
    asked = request(**{"config": {"segment.bytes": 1048576}, **other})
    problem = await refusal(life.admin.create(asked))
    dry = await refusal(life.admin.create(asked, dry_run=True))

    assert problem.code == dry.code == "topic_exists"
    assert missing(problem.detail, *difference.split()) == []
    assert life.mirror.metadata.topics["flights"].value == first


async def test_a_dry_run_writes_nothing(life: Any) -> None:
    """A dry run returns the topic that would be created, or the existing topic, and writes nothing."""
    before = life.mirror.metadata.revision
    record, created = await life.admin.create(request(), dry_run=True)
    after = (await life.coordination.list("/")).revision
    await life.admin.create(request())
    again = await life.admin.create(request(), dry_run=True)

    assert (record.partitions, created) == (3, True)
    assert before == after
    assert again == (life.mirror.metadata.topics["flights"].value, False)


async def test_fifty_creators_of_one_name_converge(life: Any) -> None:
    """Concurrent creations of one topic all return the same topic id, and exactly one of them creates the topic."""
    admins = [life.admin, *(life.another_admin(f"{n:x}a") for n in range(1, 5))]
    answers = await asyncio.gather(*(admins[n % 5].create(request(partitions=70)) for n in range(50)))
    topic = life.mirror.metadata.topics["flights"].value

    assert {record.topic_id for record, _ in answers} == {topic.topic_id}
    assert sum(created for _, created in answers) == 1
    assert topic.state is TopicState.READY
    assert len(life.mirror.metadata.partitions(topic.topic_id)) == 70
    assert {record.state for record, _ in answers} == {TopicState.READY}


async def test_fifty_creators_of_fifty_names_do_not_disturb_each_other(life: Any) -> None:
    """Concurrent creations of different topics all succeed."""
    answers = await asyncio.gather(*(life.admin.create(request(f"t{n}")) for n in range(50)))

    assert all(created for _, created in answers)
    assert set(life.mirror.metadata.topics) == {f"t{n}" for n in range(50)}


async def test_different_creations_give_one_topic_and_refusals(life: Any) -> None:
    """The first of several concurrent creations of a topic succeeds, and creations that differ from it are refused."""
    answers = await asyncio.gather(
        *(life.admin.create(request(partitions=1 + n % 2)) for n in range(10)), return_exceptions=True
    )
    topic = life.mirror.metadata.topics["flights"].value
    refused = [answer for answer in answers if isinstance(answer, ProblemError)]

    assert len(refused) == 5
    assert {problem.code for problem in refused} == {"topic_exists"}
    assert len(life.mirror.metadata.partitions(topic.topic_id)) == topic.partitions


async def test_names_that_are_one_in_metrics_are_refused(life: Any) -> None:
    """A topic name with the same metric name as an existing topic, or a topic being created, is refused."""
    await life.admin.create(request("a.b"))
    problem = await refusal(life.admin.create(request("a_b")))
    answers = await asyncio.gather(
        life.admin.create(request("c.d")), life.admin.create(request("c_d")), return_exceptions=True
    )
    await life.admin.delete("a.b")
    _, created = await life.admin.create(request("a_b"))

    assert problem.code == "invalid_topic_name"
    assert missing(problem.detail, "a.b") == []
    assert [isinstance(answer, ProblemError) for answer in answers] == [False, True]
    assert set(life.mirror.metadata.topics) == {"a_b", "c.d"}
    assert created


@pytest.mark.parametrize(
    ("asked", "code", "detail"),
    [
        (
            {"replication_factor": 3},
            "invalid_config",
            "topic flights requires 3 replicas of each partition, but 1 broker takes new replicas",
        ),
        ({"config": {"no.such.key": 1}}, "invalid_config", "no.such.key"),
        ({"config": {"quorum.write": 1}}, "invalid_config", "quorum.write"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_written(
    life: Any, asked: dict[str, Any], code: str, detail: str
) -> None:
    """An impossible topic is refused before anything is written, and the refusal names the wrong numbers or key."""
    problem = await refusal(life.admin.create(request(**asked)))

    assert problem.code == code
    assert detail in problem.detail
    assert life.mirror.metadata.topics == {}


async def test_the_default_replication_factor_is_the_clusters(life: Any, kit: Any) -> None:
    """The default replication factor is the cluster's, or follows from the number of brokers."""
    record, _ = await life.admin.create(request("a"))
    config = ConfigRecord(values={"default.replication.factor": 2})
    result = await life.coordination.transact((), (Put(kit.keys.cluster_config, encode(config)),))
    await life.mirror.wait_for(result.revision)
    problem = await refusal(life.admin.create(request("b")))

    assert record.replication_factor == 1
    assert "requires 2 replicas" in problem.detail


async def test_an_alteration_changes_configuration_and_grows(life: Any) -> None:
    """An alteration changes the configuration as a merge patch, adds partitions, and updates partition records."""
    created, _ = await life.admin.create(
        request(config={"segment.bytes": 1048576, "durability": "replicated"})
    )
    altered = await life.admin.alter(
        "flights",
        AlterTopicRequest(partitions=5, config={"segment.bytes": None, "durability": "synced"}),
        created.topic_id,
    )
    partitions = life.mirror.metadata.partitions(altered.topic_id)

    assert (altered.topic_id, altered.partitions, altered.growing_to) == (created.topic_id, 5, None)
    assert altered.config == {"durability": "synced"}
    assert [partitions[PartitionIndex(n)].value.durability for n in (0, 4)] == [
        DurabilityState.SYNCING,
        DurabilityState.SYNCED,
    ]


async def test_an_alteration_that_changes_nothing_writes_nothing(life: Any) -> None:
    """An alteration without a change returns the topic and writes nothing."""
    created, _ = await life.admin.create(request())
    revision = life.mirror.metadata.revision
    altered = await life.admin.alter("flights", AlterTopicRequest(partitions=3))

    assert altered == created
    assert (await life.coordination.list("/")).revision == revision


async def test_partitions_do_not_shrink(life: Any) -> None:
    """A request with fewer partitions is refused as a whole, and the problem contains the old and the new number."""
    created, _ = await life.admin.create(request())
    problem = await refusal(
        life.admin.alter("flights", AlterTopicRequest(partitions=2, config={"segment.bytes": 1048576}))
    )

    assert problem.code == "invalid_config"
    assert missing(problem.detail, "flights", 3, 2) == []
    assert life.mirror.metadata.topics["flights"].value == created


async def test_alterations_at_once_are_all_done(life: Any) -> None:
    """Concurrent alterations are all applied: different keys are merged, and the largest partition count is reached."""
    await life.admin.create(request(partitions=1))
    keys: dict[str, str | int] = {
        "segment.bytes": 1048576,
        "segment.ms": 60000,
        "max.message.bytes": 4096,
        "durability": "replicated",
    }
    answers = await asyncio.gather(
        *(life.admin.alter("flights", AlterTopicRequest(config={key: value})) for key, value in keys.items()),
        *(life.admin.alter("flights", AlterTopicRequest(partitions=n)) for n in (90, 90)),
    )
    topic = life.mirror.metadata.topics["flights"].value

    assert len(answers) == 6
    assert topic.config == {key: str(value) for key, value in keys.items()}
    assert (topic.partitions, topic.growing_to) == (90, None)
    assert len(life.mirror.metadata.partitions(topic.topic_id)) == 90


async def test_a_deleted_topic_frees_its_name(life: Any, clock: Any) -> None:
    """A deleted topic frees its name and leaves a tombstone, and the next topic of that name has a different id."""
    first, _ = await life.admin.create(request())
    await life.admin.delete("flights", first.topic_id)
    gone = dict(life.mirror.metadata.topics)
    second, created = await life.admin.create(request(partitions=1))

    assert gone == {}
    assert life.mirror.metadata.deleted_topics[first.topic_id].value.name == "flights"
    assert life.mirror.metadata.partitions(first.topic_id) == {}
    assert created
    assert second.topic_id != first.topic_id


async def test_a_topic_that_is_not_there_is_not_found(life: Any) -> None:
    """A missing topic cannot be altered or deleted."""
    problems = [
        await refusal(life.admin.alter("flights", AlterTopicRequest(partitions=2))),
        await refusal(life.admin.delete("flights")),
    ]

    assert [problem.code for problem in problems] == ["topic_not_found"] * 2


async def test_another_topic_of_the_same_name_is_left_alone(life: Any) -> None:
    """A request with a topic id does not affect another topic of the same name."""
    created, _ = await life.admin.create(request())
    problems = [
        await refusal(life.admin.alter("flights", AlterTopicRequest(partitions=5), OTHER_ID)),
        await refusal(life.admin.delete("flights", OTHER_ID)),
    ]

    assert [problem.code for problem in problems] == ["topic_recreated"] * 2
    assert problems[0].data == {"topic": "flights", "expected": OTHER_ID, "actual": created.topic_id}
    assert life.mirror.metadata.topics["flights"].value == created


async def test_deleting_at_once_deletes_once(life: Any) -> None:
    """Concurrent deletions delete a topic once, and each returns when the name is free or reports a missing topic."""
    created, _ = await life.admin.create(request(partitions=100))
    answers = await asyncio.gather(*(life.admin.delete("flights") for _ in range(10)), return_exceptions=True)
    codes = {answer.code if isinstance(answer, ProblemError) else answer for answer in answers}

    assert codes <= {None, "topic_not_found"}
    assert list(life.mirror.metadata.deleted_topics) == [created.topic_id]
    assert life.mirror.metadata.topics == {}


async def test_creating_and_deleting_at_once_leaves_one_or_none(life: Any) -> None:
    """Concurrent creations and deletions leave a complete topic or no topic."""
    for n in range(5):
        await asyncio.gather(
            life.admin.create(request(partitions=70)),
            life.admin.create(request(partitions=70)),
            asyncio.gather(life.admin.delete("flights"), return_exceptions=True),
            return_exceptions=True,
        )
        topics = life.mirror.metadata.topics
        whole = {
            topic.value.topic_id: (
                topic.value.state,
                len(life.mirror.metadata.partitions(topic.value.topic_id)),
            )
            for topic in topics.values()
        }
        left = [item.key for item in (await life.coordination.list(life.mirror.metadata.keys.meta)).items]

        assert set(whole.values()) <= {(TopicState.READY, 70)}, f"round {n}"
        assert sum("/partitions/" in key for key in left) == 70 * len(whole)
        if topics:
            await life.admin.delete("flights")


async def test_a_topic_that_is_deleted_while_it_is_created_is_not_made_again(life: Any) -> None:
    """A topic that is deleted during its creation is not created again, and its creation fails."""

    async def delete_first(call: Any) -> Any:
        await life.another_admin("b").delete("flights")
        return await call()

    life.coordination.faults["transact"] = [*crash_after(1, applied=True)[:1], delete_first]
    problem = await refusal(life.admin.create(request()))

    assert problem.code == "conflict"
    assert missing(problem.detail, "flights", "deleted") == []
    assert life.mirror.metadata.topics == {}
    assert len(life.mirror.metadata.deleted_topics) == 1


async def test_a_topic_that_waits_for_brokers_is_not_altered(life: Any, kit: Any) -> None:
    """A topic whose growth waits for brokers cannot be altered."""
    created, _ = await life.admin.create(request())
    waiting = msgspec.structs.replace(created, replication_factor=2, growing_to=6)
    result = await life.coordination.transact((), (Put(kit.keys.topic("flights"), encode(waiting)),))
    await life.mirror.wait_for(result.revision)
    problem = await refusal(life.admin.alter("flights", AlterTopicRequest(partitions=9)))

    assert problem.code == "conflict"
    assert life.mirror.metadata.topics["flights"].value.growing_to == 6


class CrashError(Exception):
    """Simulated crash of the process."""


def crash_after(count: int, *, applied: bool) -> list[Callable[[Any], Any]]:
    """Return faults that let some transactions pass and then crash, with the last transaction applied or not."""

    async def through(call: Any) -> Any:
        return await call()

    async def crash(call: Any) -> Any:
        if applied:
            await call()
        raise CrashError

    return [*[through] * count, crash]


async def create(admin: Any) -> None:
    """Create the topic of the crash tests."""
    await admin.create(request(partitions=130))


async def grow(admin: Any) -> None:
    """Add partitions to the topic."""
    await admin.alter("flights", AlterTopicRequest(partitions=260, config={"durability": "replicated"}))


async def delete(admin: Any) -> None:
    """Delete the topic."""
    await admin.delete("flights")


@pytest.mark.slow
# A crash after one transaction leaves the store in the same state as a crash before the next transaction.
@pytest.mark.parametrize(
    ("cut", "applied"),
    [
        (0, False),
        *((cut, True) for cut in range(5)),
        *(pytest.param(cut, False, marks=pytest.mark.scenario) for cut in range(1, 5)),
    ],
)
@pytest.mark.parametrize("change", [create, grow, delete])
async def test_a_crash_between_any_two_transactions_is_finished_at_the_next_start(
    path: Path, clock: Any, kit: Any, change: Callable[[Any], Awaitable[None]], cut: int, applied: bool
) -> None:
    """A started change is finished by the next incarnation after a crash between any two transactions."""
    async with kit.live(path, clock) as life:
        if change is not create:
            await create(life.admin)
        epoch = life.membership.broker_epoch
        life.coordination.faults["transact"] = crash_after(cut, applied=applied)
        with pytest.raises(CrashError):
            await change(life.admin)
    async with kit.live(path, clock, last_broker_epoch=epoch) as life:
        await life.controllership.begin()
        topics, begun = dict(life.mirror.metadata.topics), cut > 0 or applied
        items = (await life.coordination.list(kit.keys.meta)).items
        partitions = [item for item in items if "/partitions/" in item.key]
        if begun and change is delete:
            assert topics == {}
            assert partitions == []
            assert len(life.mirror.metadata.deleted_topics) == 1
        elif not begun and change is create:
            assert topics == {}
        else:
            topic: TopicRecord = topics["flights"].value
            count = 260 if begun and change is grow else 130
            led = life.mirror.metadata.partitions(topic.topic_id)
            assert (topic.state, topic.partitions, topic.growing_to) == (TopicState.READY, count, None)
            assert sorted(led) == list(range(count))
            assert {each.value.leader.broker_epoch for each in led.values()} == {life.membership.broker_epoch}
            assert {each.value.durability.value for each in led.values()} == {
                "replicated" if begun and change is grow else "synced"
            }
        # The topic can be changed after the recovery.
        if "flights" in topics:
            await delete(life.admin)
        await create(life.admin)


async def test_every_start_raises_the_leader_epochs(path: Path, clock: Any, kit: Any) -> None:
    """Each incarnation raises the leader epochs of all partitions once."""
    seen, epoch = [], 0
    for n in range(3):
        async with kit.live(path, clock, last_broker_epoch=epoch) as life:
            epoch = life.membership.broker_epoch
            await life.controllership.begin()
            if n == 0:
                await asyncio.gather(*(life.admin.create(request(f"t{m}", 40)) for m in range(4)))
            await life.controllership.begin()
            records = [
                each.value
                for topic in life.mirror.metadata.topics.values()
                for each in life.mirror.metadata.partitions(topic.value.topic_id).values()
            ]
            seen.append({(each.leader_epoch, each.leader.broker_epoch == epoch) for each in records})

    assert seen == [{(0, True)}, {(1, True)}, {(2, True)}]


async def test_a_start_applies_what_was_configured_meanwhile(path: Path, clock: Any, kit: Any) -> None:
    """A cluster default that changed while no broker was running is applied at the next start."""
    async with kit.live(path, clock) as life:
        created, _ = await life.admin.create(request())
        epoch = life.membership.broker_epoch
        config = ConfigRecord(values={"durability": "replicated"})
        await life.coordination.transact((), (Put(kit.keys.cluster_config, encode(config)),))
    async with kit.live(path, clock, last_broker_epoch=epoch) as life:
        await life.controllership.begin()
        partitions = life.mirror.metadata.partitions(created.topic_id)

        assert {each.value.durability for each in partitions.values()} == {DurabilityState.REPLICATED}


async def test_without_the_term_nothing_is_changed(life: Any, kit: Any) -> None:
    """A broker that is not the controller refuses all changes, and the store would refuse its transactions."""
    await life.admin.create(request())
    result = await life.coordination.transact((), (Delete(kit.keys.controller),))
    unseen = await asyncio.gather(life.admin.create(request("other")), return_exceptions=True)
    await life.mirror.wait_for(result.revision)
    problems = [
        await refusal(life.admin.create(request("another"))),
        await refusal(life.admin.delete("flights")),
        await refusal(life.admin.alter("flights", AlterTopicRequest(partitions=9))),
    ]

    assert isinstance(unseen[0], ProblemError)
    assert {problem.code for problem in problems} == {"coordination_unavailable"}
    assert set(life.mirror.metadata.topics) == {"flights"}


async def test_a_minimum_in_sync_above_the_replicas_is_refused(life: Any) -> None:
    """min.insync.replicas above the number of replicas is refused for new and for altered topics."""
    wanted = {"min.insync.replicas": 2}
    await life.admin.create(request("other"))
    problems = [
        await refusal(life.admin.create(request(config=wanted))),
        await refusal(life.admin.alter("other", AlterTopicRequest(config=wanted))),
    ]

    assert [problem.code for problem in problems] == ["invalid_config"] * 2
    assert [problem.data for problem in problems] == [
        {"key": "min.insync.replicas", "value": 2, "allowed": "1 to 1"}
    ] * 2
