"""Moves of leaderships with a write quorum, which begin when the leader reports that a voter is near."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.controlling.leader_moves import (
    AGAIN_SECONDS,
    AGAIN_SECONDS_MAX,
    LeaderMoves,
    no_near_voters,
)
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.quorum import vacated
from fairlead_broker.registry.records import PartitionRecord, Quorum
from partition_kit import KEY, R1, R2, R3, STOPPING, brokers, entries, record

LED: Versioned[PartitionRecord] = Versioned(
    record(1, "", quorum=Quorum(write=2, voters=entries(1, 2, 3))), Revision(1), Revision(5)
)


@dataclass
class Leader:
    """A leader that reports near voters."""

    near: set[int] = field(default_factory=lambda: {1, 2, 3})
    asked: list[int] = field(default_factory=list)

    async def __call__(
        self, broker: BrokerId, keys: Sequence[PartitionKey]
    ) -> Mapping[PartitionKey, frozenset[BrokerId]]:
        """Return the near voters of the partitions."""
        self.asked.append(broker)
        return {key: frozenset(map(BrokerId, self.near)) for key in keys}


class Controller:
    """A controller that moves the leadership of one partition."""

    def __init__(self, clock: Any, leader: Leader) -> None:
        self.clock = clock
        self.leader = leader
        self.view = ClusterView(brokers(R1, R2, R3))
        self.found: Versioned[PartitionRecord] | None = LED
        self.answered = asyncio.Event()
        self.moves = LeaderMoves(leader, lambda: self.view, lambda key: self.found, clock, self.answered.set)
        self.group = asyncio.TaskGroup()

    def stop_leader(self) -> None:
        """Let the leader's broker stop."""
        self.view = ClusterView(brokers((1, STOPPING), R2, R3))

    async def asked(self) -> list[PartitionRecord]:
        """Ask the leader if a request is due, and return the vacancies that can be written then."""
        self.answered.clear()
        before = len(self.leader.asked)
        self.moves.begin(self.group)
        await asyncio.sleep(0)  # noqa: TID251 - the request begins in the next turn of the loop
        if len(self.leader.asked) > before:
            async with asyncio.timeout(30):
                await self.answered.wait()
        return [write.record for write in self.moves.due()]


@pytest.fixture
async def controller(clock: Any) -> AsyncIterator[Controller]:
    """Yield a controller whose requests have ended after the test."""
    made = Controller(clock, Leader())
    async with made.group:
        yield made


async def test_a_stopping_leader_is_replaced_once_a_voter_is_near(controller: Controller) -> None:
    """The vacancy is written only when the leader reports another near voter; the leader is asked once a second."""
    controller.stop_leader()
    controller.leader.near = {1}
    controller.moves.want(KEY)
    alone = await controller.asked()
    controller.leader.near = {1, 2}
    too_soon = await controller.asked()
    controller.clock.seconds += AGAIN_SECONDS
    then = await controller.asked()

    assert (alone, too_soon) == ([], [])
    assert then == [vacated(LED.value)]
    assert controller.leader.asked == [1, 1]


async def test_a_move_to_a_voter_that_is_not_near_is_dropped(controller: Controller) -> None:
    """A requested move is dropped if its target voter is not near; otherwise it begins with a vacancy."""
    controller.leader.near = {1, 2}
    controller.moves.want(KEY, BrokerId(3))
    refused = await controller.asked()
    controller.clock.seconds += AGAIN_SECONDS
    dropped = await controller.asked()
    controller.moves.want(KEY, BrokerId(2))
    moved = await controller.asked()

    assert (refused, dropped) == ([], [])
    assert moved == [vacated(LED.value)]
    assert len(controller.leader.asked) == 2


async def test_a_move_without_a_reason_is_dropped(controller: Controller) -> None:
    """A leader that no longer has to leave stays, and a partition without a leader is not asked."""
    controller.moves.want(KEY)
    stays = await controller.asked()
    controller.found = Versioned(vacated(LED.value), Revision(1), Revision(6))
    controller.moves.want(KEY)
    controller.clock.seconds += AGAIN_SECONDS_MAX
    leaderless = await controller.asked()

    assert (stays, leaderless) == ([], [])
    assert len(controller.leader.asked) == 1


async def test_moves_that_end_with_the_same_leader_are_repeated_ever_later(controller: Controller) -> None:
    """Each vacancy interrupts producers, so the pause doubles while the same broker is appointed again."""
    controller.stop_leader()
    written = []
    for pause in (0.0, AGAIN_SECONDS, AGAIN_SECONDS, AGAIN_SECONDS_MAX):
        controller.clock.seconds += pause
        controller.moves.want(KEY)
        written.append(len(await controller.asked()))

    assert written == [1, 0, 1, 1]


async def test_near_voters_are_those_that_the_leader_reports(controller: Controller) -> None:
    """Near voters come from the leader; a partition without a leader, and a broker without peers, have none."""
    reported = await controller.moves.near(KEY)
    controller.found = None
    unknown = await controller.moves.near(KEY)
    controller.moves.want(KEY)
    controller.moves.forget()

    assert reported == {1, 2, 3}
    assert unknown == frozenset()
    assert await controller.asked() == []
    assert await no_near_voters(BrokerId(1), [KEY]) == {}
