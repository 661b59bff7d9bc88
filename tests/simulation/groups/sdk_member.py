"""A member whose head is the SDK's own machine (`fairlead.group.member`); hands and feet are those of `Member`.

What the machine orders is done here as the SDK's session does it: revoked partitions are finished and committed
before they are reported as released, dropped ones are gone at once. Heartbeats time out as they do there, and late
answers are passed on: the machine must not listen to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlead.errors import UnreachableError
from fairlead.errors.kinds import error_of
from fairlead.group.events import (
    Action,
    Assign,
    Closed,
    Drop,
    Event,
    Fail,
    HeartbeatAnswered,
    HeartbeatRefused,
    HeartbeatWanted,
    Partitions,
    Released,
    Revoke,
    SendHeartbeat,
    Taken,
    Woken,
)
from fairlead.group.member import GroupMember, Subscription
from fairlead.settings import Backoff
from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import Heartbeat, HeartbeatReply
from fairlead_broker.runtime.groups.calls import heartbeat_answer, heartbeat_event
from groups.member import SOON_SECONDS, Member
from groups.messages import Answer, Commit, Committed, Partition, Refused, Request

if TYPE_CHECKING:
    from groups.world import World

BACKOFF: Final = Backoff(0.05, 1.0)


class SdkMember(Member):
    """One member, process after process, each with a machine of its own."""

    def __init__(self, world: World, number: int, group: str, instance_id: str | None) -> None:
        """Be there, switched off."""
        super().__init__(world, number, group, instance_id)
        self.machine: GroupMember | None = None
        self._numbers: dict[int, int] = {}
        """The machine's number of each heartbeat that was sent."""
        self._wakes = 0

    def begin(self) -> None:
        """Join with a new machine."""
        plan = self._world.plan
        subscription = Subscription(
            topics=tuple(sorted(self.topics)),
            topic_pattern=self.pattern,
            instance_id=self.instance_id,
            assignor=plan.assignor,
            session_timeout_ms=int(plan.session_seconds * 1000),
            rebalance_timeout_ms=int(plan.rebalance_seconds * 1000),
        )
        self.machine = GroupMember(subscription, BACKOFF, self._world.now)
        self._numbers = {}
        self.feed(Woken())

    def subscribe(self, topics: frozenset[str], pattern: str | None) -> None:
        """Want other topics from now on: a consumer of the SDK is closed, and another one made."""
        if self.alive and not self.leaving:
            self.leave(static=False)
            self.after(2 * SOON_SECONDS, self.start)
        super().subscribe(topics, pattern)

    def leave(self, *, static: bool) -> None:
        """Say goodbye; the machine hears nothing more."""
        if self.alive and not self.leaving and self.machine is not None:
            self.machine.step(Closed(), self._world.now)
        super().leave(static=static)

    def feed(self, event: Event) -> None:
        """Let the machine decide, and do what it orders."""
        machine = self.machine
        if machine is None or not self.alive or self.leaving:
            return
        actions = machine.step(event, self._world.now)
        self.joined = machine.epoch > 0
        if machine.epoch and machine.epoch != self.epoch:
            self._world.judge.told(self, machine.epoch)
        self.epoch = machine.epoch
        for action in actions:
            self._do(action)
            if not self.alive:
                return
        self._world.judge.owns(self)
        self._wakes += 1
        if machine.deadline is not None:
            self.after(max(0.0, machine.deadline - self._world.now) + 1e-6, self._woken, self._wakes)

    def _woken(self, wakes: int) -> None:
        if wakes == self._wakes:
            self.feed(Woken())

    def _do(self, action: Action) -> None:
        match action:
            case SendHeartbeat(number, request):
                attempt = self._send(heartbeat_event(self.member_id, request))
                self._numbers[attempt] = number
            case Revoke(order, partitions):
                lost = _places(partitions)
                self.giving_up |= lost
                self._world.judge.gives_up(self, lost)
                self._world.note("revoke", self.number, self.member_id, self.epoch, sorted(lost))
                seconds = self._world.schedule.between(0.0, self._world.plan.wind_seconds)
                self.after(max(seconds, self.slow_until - self._world.now), self._finish, order, lost)
            case Assign(order, partitions):
                gained = _places(partitions)
                self._world.note("assigned", self.number, self.member_id, self.epoch, sorted(gained))
                self.owned |= dict.fromkeys(sorted(gained))
                self._read = 0
                self._read_offsets()
                self.after(self._world.schedule.between(0.0, SOON_SECONDS), self.feed, Taken(order))
            case Drop():
                self._world.note("drop", self.number, self.member_id)
                self.slow_until = 0.0
                self.lose_all()
            case Fail():
                self._world.judge.counts["members that fail"] += 1
                self.kill()
            case _:
                pass

    def _finish(self, order: int, lost: set[Partition]) -> None:
        """Commit the last of what goes, if that is still wanted, then report it as released."""
        if self.machine is None or order != self.machine.round:
            return
        if self._commit and self._world.schedule.happens(0.7):
            self.after(SOON_SECONDS, self._finish, order, lost)
            return
        for partition in lost:
            self.owned.pop(partition, None)
        self.giving_up -= lost
        self.feed(Released(order))

    # -- answers

    def answered(self, request: Request, answer: Answer | None) -> None:
        """Hear an answer, or that none has come in time."""
        if not isinstance(request.content, Heartbeat):
            super().answered(request, answer)
        elif request.life == self.life and request.attempt in self._numbers:
            self.feed(self._outcome(self._numbers[request.attempt], answer))

    def _outcome(self, number: int, answer: Answer | None) -> Event:
        chance = self._world.schedule.rng.random()
        if isinstance(answer, HeartbeatReply):
            return HeartbeatAnswered(number, heartbeat_answer(answer, self._world.name_of))
        if isinstance(answer, Refused):
            self._world.judge.counts[f"refused {answer.code}"] += 1
            problem = ProblemError(answer.code, "refused in a simulated world")
            return HeartbeatRefused(number, error_of(problem, subject="heartbeat"), chance)
        return HeartbeatRefused(number, UnreachableError("heartbeat", {"broker": "late"}, sent=True), chance)

    def _commit_answered(self, content: Commit, answer: Answer | None) -> None:
        if isinstance(answer, Committed):
            self._world.judge.counts["committed"] += 1
        elif isinstance(answer, Refused):
            self._world.judge.counts[f"commit {answer.code}"] += 1
            if answer.code == "stale_member_epoch" and content.member_epoch == self.epoch:
                self.feed(HeartbeatWanted())

    def _beat(self) -> None:
        """Heartbeats are the machine's."""


def _places(partitions: Partitions) -> set[Partition]:
    return {(TopicId(topic_id), place.partition) for place, topic_id in partitions.items()}
