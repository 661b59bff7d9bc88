"""Surveys of the replicas' log ends before unclean elections run in parallel and are each used at most once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.controlling.unclean_elections import (
    AGAIN_SECONDS,
    Survey,
    UncleanElections,
    no_answers,
)
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import PartitionRecord
from partition_kit import KEY, R1, R2, R3, STOPPING, brokers, record, registered

OTHER = PartitionKey(KEY.topic_id, type(KEY.partition)(KEY.partition + 1))
PATIENCE_SECONDS = 10.0


def end(offset: int) -> LogEnd:
    """Return a log end in leader epoch 7."""
    return LogEnd(LeaderEpoch(7), Offset(offset))


@dataclass
class Replicas:
    """Replicas that report the given log ends when the test allows it."""

    ends: dict[int, LogEnd] = field(default_factory=dict)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    slow: set[PartitionKey] = field(default_factory=set)
    asked: list[tuple[PartitionKey, list[int]]] = field(default_factory=list)

    async def __call__(self, key: PartitionKey, wanted: Sequence[BrokerId]) -> dict[BrokerId, LogEnd]:
        """Return the reported log ends, after a wait if the partition is slow."""
        self.asked.append((key, list(wanted)))
        if key in self.slow:
            await self.answers.wait()
        return {each: self.ends[each] for each in wanted if each in self.ends}


class Controller:
    """Helper that starts surveys and elects leaders from their results, as the controller does."""

    def __init__(self, clock: Any, survey: Survey) -> None:
        self.clock = clock
        self.view = ClusterView(brokers(R2, R3))
        self.ended = asyncio.Event()
        self.elections = UncleanElections(survey, lambda: self.view, clock, self.ended.set)
        self.partitions = {
            key: Versioned(record(None, "1", min_isr=1), Revision(1), Revision(5)) for key in (KEY, OTHER)
        }
        self.group = asyncio.TaskGroup()

    def begin(self, *keys: PartitionKey) -> None:
        """Start surveys of the given partitions."""
        self.elections.begin(self.group, [(key, self.partitions[key]) for key in keys])

    async def survey_ended(self) -> None:
        """Wait until a survey has ended."""
        async with asyncio.timeout(30):
            await self.ended.wait()
        self.ended.clear()

    def elected(self) -> dict[PartitionKey, int]:
        """Return the elected leader of each partition."""
        writes = self.elections.elected(self.partitions.get, PATIENCE_SECONDS)
        return {write.key: write.record.leader.broker for write in writes if write.record.leader}

    async def outcome(self) -> dict[PartitionKey, int]:
        """Survey one partition and return the elections."""
        self.begin(KEY)
        await self.survey_ended()
        return self.elected()


@pytest.fixture
def replicas() -> Replicas:
    """Return two replicas that report their log ends."""
    return Replicas({2: end(5), 3: end(9)})


@pytest.fixture
async def controller(clock: Any, replicas: Replicas) -> AsyncIterator[Controller]:
    """Yield a controller whose tasks are stopped after the test."""
    made = Controller(clock, replicas)
    async with made.group:
        yield made
        replicas.answers.set()


async def test_a_slow_replica_delays_only_its_partition(controller: Controller, replicas: Replicas) -> None:
    """A slow replica delays only its own partition, which is not surveyed twice at the same time."""
    replicas.slow.add(KEY)
    controller.begin(KEY, OTHER)
    await controller.survey_ended()
    first = controller.elected()
    controller.clock.seconds += AGAIN_SECONDS
    controller.begin(KEY)
    replicas.answers.set()
    await controller.survey_ended()

    assert first == {OTHER: 3}
    assert controller.elected() == {KEY: 3}
    assert [key for key, _ in replicas.asked] == [KEY, OTHER]


async def test_a_survey_is_used_once(controller: Controller) -> None:
    """A survey is used for one election only."""
    assert await controller.outcome() == {KEY: 3}
    assert controller.elected() == {}


async def test_a_registered_silent_replica_is_waited_for(controller: Controller, replicas: Replicas) -> None:
    """A registered replica that does not report its log end is queried every second until the time limit."""
    del replicas.ends[3]
    first = await controller.outcome()
    controller.begin(KEY)
    asked_once = len(replicas.asked)
    controller.clock.seconds += AGAIN_SECONDS
    second = await controller.outcome()
    controller.clock.seconds += PATIENCE_SECONDS
    last = await controller.outcome()

    assert (first, second, last) == ({}, {}, {KEY: 2})
    assert (asked_once, len(replicas.asked)) == (1, 3)


async def test_a_late_replica_is_waited_for_as_long(controller: Controller, replicas: Replicas) -> None:
    """The controller waits for a late replica until the time limit, because its log may be the longest."""
    controller.view = ClusterView(brokers(R1))
    nobody = await controller.outcome()
    controller.clock.seconds += 2 * PATIENCE_SECONDS
    controller.view = ClusterView(brokers(R1, R2, R3))
    opening = replicas.ends.pop(3)
    early = await controller.outcome()
    controller.clock.seconds += PATIENCE_SECONDS - 1
    replicas.ends[3] = opening

    assert (nobody, early) == ({}, {})
    assert await controller.outcome() == {KEY: 3}


async def test_the_waiting_time_restarts_with_another_record(
    controller: Controller, replicas: Replicas
) -> None:
    """The waiting time starts again with a new partition record, because the partition had a leader in the meantime."""
    del replicas.ends[3]
    before = await controller.outcome()
    found = controller.partitions[KEY]
    controller.partitions[KEY] = Versioned(found.value, found.create_revision, Revision(8))
    controller.clock.seconds += PATIENCE_SECONDS
    first = await controller.outcome()
    controller.clock.seconds += PATIENCE_SECONDS

    assert (before, first) == ({}, {})
    assert await controller.outcome() == {KEY: 2}


@pytest.mark.parametrize(
    "present", [[R2, (3, STOPPING)], [R2]], ids=["stopping", "gone"]
)  # fmt: skip
async def test_a_replica_that_cannot_lead_is_not_waited_for(
    controller: Controller, replicas: Replicas, present: list[Any]
) -> None:
    """The controller does not wait for a replica that cannot lead."""
    del replicas.ends[3]
    controller.view = ClusterView(brokers(*present))

    assert await controller.outcome() == {KEY: 2}


async def test_a_log_end_of_an_earlier_incarnation_is_not_used(controller: Controller) -> None:
    """A log end that an earlier incarnation of the broker reported is not used."""
    controller.begin(KEY)
    await controller.survey_ended()
    controller.view = ClusterView({**brokers(R2), BrokerId(3): registered(3, 99)})
    first = controller.elected()
    controller.clock.seconds += PATIENCE_SECONDS

    assert first == {}
    assert await controller.outcome() == {KEY: 3}


async def test_another_record_is_another_survey(controller: Controller) -> None:
    """A survey of an earlier partition record is not used."""
    controller.begin(KEY)
    await controller.survey_ended()
    found = controller.partitions[KEY]
    controller.partitions[KEY] = Versioned(found.value, found.create_revision, Revision(6))
    first = controller.elected()

    assert first == {}
    assert await controller.outcome() == {KEY: 3}


async def test_a_leader_that_came_back_stays(controller: Controller) -> None:
    """A partition that has a leader again gets no other leader."""
    found = controller.partitions[KEY]
    controller.partitions[KEY] = Versioned(
        record(2, "2", min_isr=1), found.create_revision, found.mod_revision
    )

    assert await controller.outcome() == {}


async def test_a_restored_record_waits_for_every_replica(controller: Controller, replicas: Replicas) -> None:
    """For a record from a backup, the controller waits for every replica, unless an operator forces the election."""
    found = controller.partitions[KEY]
    restored = msgspec.structs.replace(found.value, restored=True)
    controller.partitions[KEY] = Versioned(restored, found.create_revision, found.mod_revision)
    first = await controller.outcome()
    controller.clock.seconds += PATIENCE_SECONDS
    second = await controller.outcome()
    surveyed = await controller.elections.survey(KEY, controller.partitions[KEY])
    forced = controller.elections.election(surveyed, forced=True)
    controller.view = ClusterView(brokers(R1, R2, R3))
    replicas.ends[1] = end(100)
    controller.clock.seconds += PATIENCE_SECONDS

    assert (first, second) == ({}, {})
    assert forced is not None
    assert forced.record.leader is not None
    assert (forced.record.leader.broker, forced.record.restored) == (3, False)
    assert await controller.outcome() == {KEY: 1}


async def test_a_term_begins_with_no_surveys(controller: Controller) -> None:
    """A controller does not use surveys of an earlier term."""
    controller.begin(KEY)
    await controller.survey_ended()
    controller.elections.forget()

    assert controller.elected() == {}
    assert await controller.outcome() == {KEY: 3}


async def test_surveys_are_bounded(clock: Any, replicas: Replicas) -> None:
    """The number of concurrent surveys is limited, and further partitions are surveyed later."""
    controller = Controller(clock, replicas)
    keys = [PartitionKey(KEY.topic_id, type(KEY.partition)(each)) for each in range(100)]
    replicas.slow.update(keys)
    some: PartitionRecord = record(None, "1", min_isr=1)
    async with controller.group:
        controller.elections.begin(
            controller.group, [(key, Versioned(some, Revision(1), Revision(5))) for key in keys]
        )
        replicas.answers.set()

    assert len(replicas.asked) == 60


async def test_a_controller_without_reachable_replicas_elects_no_leader(clock: Any) -> None:
    """A controller that cannot reach any replica elects no leader."""
    controller = Controller(clock, no_answers)
    clock.seconds += PATIENCE_SECONDS
    async with controller.group:
        assert await controller.outcome() == {}
