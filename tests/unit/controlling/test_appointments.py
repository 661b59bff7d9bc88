"""Appointments of leaders after answers from the replicas, which arrive at different times (quorum Q6 and Q8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.controller.vacancies import Promise
from fairlead_broker.controlling.appointments import (
    AGAIN_SECONDS,
    WAIT_SECONDS,
    Appointments,
    Vacancy,
    no_promises,
)
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import PartitionRecord, Quorum
from partition_kit import KEY, R1, R2, R3, brokers, entries, record

VACANCY: Versioned[PartitionRecord] = Versioned(
    record(None, "", quorum=Quorum(write=2, voters=entries(1, 2, 3))), Revision(1), Revision(5)
)


@dataclass
class Replicas:
    """Replicas whose logs end at the given offsets; a slow replica answers when the test allows it."""

    ends: dict[int, int] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[int] = field(default_factory=list)

    async def __call__(
        self, broker: BrokerId, vacancies: Sequence[Vacancy]
    ) -> Mapping[PartitionKey, Promise]:
        """Return a broker's answers about vacancies; a broker without a log end does not answer."""
        self.asked.append(broker)
        if broker in self.slow:
            await self.go_on.wait()
        if broker not in self.ends:
            return {}
        end = LogEnd(LeaderEpoch(6), Offset(self.ends[broker]))
        incarnation = BrokerEpoch(10 + broker)
        return {
            each.key: Promise(incarnation, f"d{broker}", 0, each.leader_epoch, end, Offset(0))
            for each in vacancies
        }


class Controller:
    """A controller with one vacancy."""

    def __init__(self, clock: Any, replicas: Replicas) -> None:
        self.clock = clock
        self.replicas = replicas
        self.view = ClusterView(brokers(R1, R2, R3))
        self.found = VACANCY
        self.answers = 0
        self.arrived = asyncio.Event()
        self.appointments = Appointments(replicas, lambda: self.view, clock, self.answered)
        self.group = asyncio.TaskGroup()

    def answered(self) -> None:
        """Count an answer."""
        self.answers += 1
        self.arrived.set()

    async def ask(self, answers: int) -> None:
        """Ask the replicas, and wait until the given number of brokers have answered in all."""
        self.appointments.begin(self.group, [(KEY, self.found)])
        async with asyncio.timeout(30):
            while self.answers < answers:
                await self.arrived.wait()
                self.arrived.clear()

    def appointed(self) -> int | None:
        """Return the broker that the next write appoints."""
        writes = self.appointments.appointed(lambda key: self.found if key == KEY else None)
        leaders = [write.record.leader.broker for write in writes if write.record.leader is not None]
        return leaders[0] if leaders else None


@pytest.fixture
def replicas() -> Replicas:
    """Return three replicas, of which the third has the longest log."""
    return Replicas({1: 5, 2: 5, 3: 9})


@pytest.fixture
async def controller(clock: Any, replicas: Replicas) -> AsyncIterator[Controller]:
    """Yield a controller whose requests are answered at the end of the test."""
    made = Controller(clock, replicas)
    async with made.group:
        yield made
        replicas.go_on.set()


async def test_the_answers_of_all_replicas_fill_a_vacancy_at_once(controller: Controller) -> None:
    """A vacancy is filled as soon as all registered replicas have answered; a preferred replica may answer last."""
    await controller.ask(3)

    assert controller.appointed() == 1, "replicas 1 and 2 are not behind those of two answers"
    assert controller.appointments.missing(KEY, VACANCY.value) == ()


async def test_a_slow_replica_delays_a_vacancy_only_for_a_moment(controller: Controller) -> None:
    """R answers fill the vacancy after the waiting time, although one replica has not answered."""
    controller.replicas.slow.add(1)
    await controller.ask(2)
    early, look = controller.appointed(), controller.appointments.look_seconds
    controller.clock.seconds += WAIT_SECONDS

    assert early is None
    assert look == pytest.approx(WAIT_SECONDS)
    assert controller.appointed() == 3
    assert controller.appointments.look_seconds is None


async def test_a_replica_without_an_answer_is_asked_again_after_a_second(controller: Controller) -> None:
    """A replica that has not answered is asked once a second, and a replica that has answered is not asked again."""
    del controller.replicas.ends[1], controller.replicas.ends[2]
    await controller.ask(3)
    controller.clock.seconds += AGAIN_SECONDS / 2
    await controller.ask(3)
    missing = controller.appointments.missing(KEY, VACANCY.value)
    controller.clock.seconds += AGAIN_SECONDS / 2
    controller.replicas.ends[2] = 9
    await controller.ask(5)

    assert missing == (1, 2)
    assert sorted(controller.replicas.asked) == [1, 1, 2, 2, 3]
    assert controller.appointed() == 2


async def test_a_request_in_progress_is_not_repeated(controller: Controller) -> None:
    """A slow replica has at most one open request about a vacancy."""
    controller.replicas.slow.add(1)
    await controller.ask(2)
    controller.clock.seconds += 2 * AGAIN_SECONDS
    await controller.ask(2)

    assert sorted(controller.replicas.asked) == [1, 2, 3]


async def test_answers_about_an_older_record_are_not_used(controller: Controller) -> None:
    """Answers are valid for one version of the partition record; for a new version, the replicas are asked again."""
    await controller.ask(3)
    controller.found = replace(VACANCY, mod_revision=Revision(6))
    outdated = controller.appointed()
    await controller.ask(6)

    assert outdated is None
    assert controller.appointed() == 1


async def test_a_new_incarnation_is_asked_at_once(controller: Controller) -> None:
    """An answer counts only for the incarnation that gave it, so a restarted replica is asked without a pause."""
    await controller.ask(3)
    restarted = replace(controller.view.brokers[BrokerId(3)], create_revision=Revision(40))
    controller.view = ClusterView({**controller.view.brokers, BrokerId(3): restarted})
    await controller.ask(4)

    assert controller.replicas.asked[-1] == 3


async def test_a_new_term_begins_without_answers(controller: Controller) -> None:
    """Answers from an earlier term are dropped, and a controller without peers gets none."""
    await controller.ask(3)
    controller.appointments.forget()

    assert controller.appointed() is None
    assert controller.appointments.missing(KEY, VACANCY.value) == (1, 2, 3)
    assert await no_promises(BrokerId(1), []) == {}
