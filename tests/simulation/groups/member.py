"""A member of a group: the SDK's state machine (`fairlead.group.member`), which reads and commits offsets.

This module is a twin of the SDK's session, which is a task on an event loop. Revoked partitions are finished and
committed before they are reported as released, and lost partitions are dropped at once. Late answers reach the SDK's
state machine, which must ignore them. A fault makes a member pause, crash or answer late, or change its subscription as
a client of the HTTP API may.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fairlead.errors import UnreachableError
from fairlead.errors.kinds import error_of
from fairlead.group.member import (
    Action,
    Assign,
    Closed,
    Drop,
    Event,
    Fail,
    GroupMember,
    HeartbeatAnswered,
    HeartbeatRefused,
    HeartbeatWanted,
    Partitions,
    Released,
    Revoke,
    SendHeartbeat,
    Subscription,
    Taken,
    Woken,
)
from fairlead.settings import Backoff
from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import Heartbeat, HeartbeatReply, Leave
from fairlead_broker.groups import Subscription as Wanted
from fairlead_broker.runtime.groups.groups import heartbeat_answer, heartbeat_event
from groups.messages import (
    Answer,
    Commit,
    Committed,
    Content,
    Offsets,
    Partition,
    ReadOffsets,
    Refused,
    Request,
)
from simulator.process import Process

if TYPE_CHECKING:
    from groups.world import World

PATIENCE_SECONDS: Final = 1.0
"""Timeout of a call."""
SOON_SECONDS: Final = 0.1
"""Delay before a refused call is tried again."""
BACKOFF: Final = Backoff(0.05, 1.0)


class Member(Process):
    """A member as a sequence of processes, each with its own `GroupMember`."""

    world: World

    def __init__(self, world: World, number: int, group: str, instance_id: str | None) -> None:
        """Create a member that is not running."""
        super().__init__(world, number)
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.epoch = 0
        self.owned: dict[Partition, int | None] = {}
        """Partitions that the member may commit, with the next offset, or None until the committed offset is read."""
        self.giving_up: set[Partition] = set()
        """Owned partitions that are no longer consumed, and are released once their offsets are committed."""
        self.topics: frozenset[str] = frozenset()
        self.pattern: str | None = None
        self.slow_until = 0.0
        """Time until which the member releases no partition, as if a callback hung."""
        self.leaving = False
        self._machine = self._new_machine()
        self._resubscribed = False
        """Whether every heartbeat names the subscription, because a late heartbeat may restore an earlier one."""
        self._numbers: dict[int, int] = {}
        """For each sent heartbeat, by attempt, the number that `GroupMember` gave it."""
        self._attempts = self._wakes = self._broker = 0
        self._commit = self._read = 0
        """Numbers of attempts in the running commit and in the running read; 0 if none is running."""

    @property
    def joined(self) -> bool:
        """Whether the process is a member of the group."""
        return self.alive and self.epoch > 0

    # -- processes

    def start(self) -> None:
        """Start a process that joins the group."""
        super().start()
        self.leaving, self.slow_until = False, 0.0
        if not self.member_id or not self.world.plan.same_id or self.instance_id is not None:
            self.member_id = f"m{self.number}-{self.life}"
        self.world.note("starts", self.number, self.member_id, self.instance_id)
        self.epoch = self._commit = self._read = 0
        self._lose_all()
        self._machine = self._new_machine()
        self._numbers = {}
        self._feed(Woken())
        self.after(self.world.plan.commit_seconds, self._consume)

    def kill(self) -> None:
        """End the process at once, without a message."""
        if self.alive:
            self.world.note("dies", self.number, self.member_id)
            super().kill()
            self._lose_all()

    def leave(self, *, static: bool) -> None:
        """Stop committing, leave the group, and end."""
        if not self.alive or self.leaving:
            return
        self._machine.step(Closed(), self.world.now)
        self.leaving = True
        self._lose_all()
        self._send(Leave(self.member_id, self.epoch or None, static))
        self.after(SOON_SECONDS, self.kill)

    def subscribe(self, topics: frozenset[str], pattern: str | None) -> None:
        """Change the subscription."""
        self.topics, self.pattern = topics, pattern
        self._resubscribed = True

    def _lose_all(self) -> None:
        self.owned, self.giving_up = {}, set()
        self.world.judge.owns(self)

    # -- the machine

    def _new_machine(self) -> GroupMember:
        plan = self.world.plan
        subscription = Subscription(
            topics=tuple(sorted(self.topics)),
            topic_pattern=self.pattern,
            instance_id=self.instance_id,
            assignor=plan.assignor,
            session_timeout_ms=int(plan.session_seconds * 1000),
            rebalance_timeout_ms=int(plan.rebalance_seconds * 1000),
        )
        return GroupMember(subscription, BACKOFF, self.world.now)

    def _feed(self, event: Event) -> None:
        """Pass an event to the SDK's `GroupMember`, and carry out its actions."""
        machine, now = self._machine, self.world.now
        if not self.alive or self.leaving:
            return
        actions = machine.step(event, now)
        if machine.epoch and machine.epoch != self.epoch:
            self.world.judge.member_epoch(self, machine.epoch)
        self.epoch = machine.epoch
        for action in actions:
            self._do(action)
            if not self.alive:
                return
        self.world.judge.owns(self)
        self._wakes += 1
        if machine.deadline is not None:
            self.after(max(0.0, machine.deadline - now) + 1e-6, self._woken, self._wakes)

    def _woken(self, wakes: int) -> None:
        if wakes == self._wakes:
            self._feed(Woken())

    def _do(self, action: Action) -> None:
        world = self.world
        match action:
            case SendHeartbeat(number, request):
                self._numbers[self._send(self._heartbeat(request))] = number
            case Revoke(order, partitions):
                lost = _places(partitions)
                self.giving_up |= lost
                world.judge.gives_up(self, lost)
                world.note("revoked", self.number, self.member_id, self.epoch, sorted(lost))
                seconds = world.schedule.between(0.0, world.plan.wind_seconds)
                self.after(max(seconds, self.slow_until - world.now), self._finish, order, lost)
            case Assign(order, partitions):
                gained = _places(partitions)
                world.note("assigned", self.number, self.member_id, self.epoch, sorted(gained))
                self.owned |= dict.fromkeys(sorted(gained))
                self._read = 0  # a running read may return an offset from before the previous owner's commit
                self._read_offsets()
                self.after(world.schedule.between(0.0, SOON_SECONDS), self._feed, Taken(order))
            case Drop():
                world.note("drops", self.number, self.member_id)
                self.slow_until = 0.0
                self._lose_all()
            case Fail():
                world.judge.counts["members that fail"] += 1
                self.kill()
            case _:
                pass

    def _heartbeat(self, request: Any) -> Heartbeat:
        heartbeat = heartbeat_event(self.member_id, request)
        if self._resubscribed or self.world.plan.whole:
            wanted = heartbeat.subscription or Wanted()
            wanted = replace(wanted, topics=self.topics, pattern=self.pattern or "")
            heartbeat = replace(heartbeat, subscription=wanted)
        if heartbeat.member_epoch and self.world.plan.whole:
            owned = {
                topic: frozenset(number for each, number in self.owned if each == topic)
                for topic, _ in self.owned
            }
            heartbeat = replace(heartbeat, owned=owned)
        return heartbeat

    def _finish(self, order: int, lost: set[Partition]) -> None:
        """Release revoked partitions, usually after the running commit."""
        if order != self._machine.round:
            return
        if self._commit and self.world.schedule.happens(0.7):
            self.after(SOON_SECONDS, self._finish, order, lost)
            return
        for partition in lost:
            self.owned.pop(partition, None)
        self.giving_up -= lost
        self._feed(Released(order))

    # -- calls

    def _send(self, content: Content) -> int:
        world = self.world
        self._attempts += 1
        self._broker = 1 + self._broker % world.plan.brokers
        request = Request(self.group, content, self.number, self.life, self._attempts)
        world.network.send(self.number, self._broker, world.brokers[self._broker].call, request)
        self.after(PATIENCE_SECONDS, self.answered, request, None)
        return self._attempts

    def answered(self, request: Request, answer: Answer | None) -> None:
        """Handle an answer, or None after a timeout; a late answer to a heartbeat reaches only `GroupMember`."""
        if request.life != self.life or self.leaving:
            return
        match request.content:
            case Heartbeat() if request.attempt in self._numbers:
                self._feed(self._outcome(self._numbers[request.attempt], answer))
            case Commit() if request.attempt == self._commit:
                self._commit = 0
                self._commit_answered(request.content, answer)
            case ReadOffsets() if request.attempt == self._read:
                self._read = 0
                self._read_answered(request.content, answer)
            case _:
                pass

    def _outcome(self, number: int, answer: Answer | None) -> Event:
        chance = self.world.schedule.rng.random()
        if isinstance(answer, HeartbeatReply):
            return HeartbeatAnswered(number, heartbeat_answer(answer, self.world.name_of))
        if isinstance(answer, Refused):
            self.world.judge.counts[f"refused {answer.code}"] += 1
            problem = ProblemError(answer.code, "refused in a simulated world")
            return HeartbeatRefused(number, error_of(problem, subject="heartbeat"), chance)
        return HeartbeatRefused(number, UnreachableError("heartbeat", {"broker": "late"}, sent=True), chance)

    # -- offsets

    def _read_offsets(self) -> None:
        wanted = tuple(sorted(partition for partition, offset in self.owned.items() if offset is None))
        if wanted and not self._read and not self.leaving:
            self._read = self._send(ReadOffsets(wanted))

    def _read_answered(self, content: ReadOffsets, answer: Answer | None) -> None:
        if isinstance(answer, Offsets):
            for partition in content.partitions:
                if partition in self.owned and self.owned[partition] is None:
                    self.owned[partition] = answer.offsets.get(partition, 0)
        if None in self.owned.values():
            self.after(SOON_SECONDS, self._read_offsets)

    def _consume(self) -> None:
        """Read some records from each partition, and commit their offsets."""
        world = self.world
        for partition, offset in self.owned.items():
            if offset is not None and partition not in self.giving_up and world.traffic:
                self.owned[partition] = offset + world.schedule.rng.randint(0, 4)
        offsets = {partition: offset for partition, offset in self.owned.items() if offset is not None}
        if offsets and not self._commit and not self.leaving:
            self._commit = self._send(Commit(self.member_id, self.epoch, offsets))
        self.after(world.schedule.between(0.5, 1.5) * world.plan.commit_seconds, self._consume)

    def _commit_answered(self, content: Commit, answer: Answer | None) -> None:
        if isinstance(answer, Committed):
            self.world.judge.counts["committed"] += 1
        elif isinstance(answer, Refused):
            self.world.judge.counts[f"commit {answer.code}"] += 1
            if answer.code == "stale_member_epoch" and content.member_epoch == self.epoch:
                self._feed(HeartbeatWanted())

    def describe(self) -> dict[str, Any]:
        """Return the state of the member for the digest of a run."""
        owned = sorted(self.owned.items(), key=repr)
        return {"id": self.member_id, "epoch": self.epoch, "owned": owned, "alive": self.alive}


def _places(partitions: Partitions) -> set[Partition]:
    return {(TopicId(topic_id), place.partition) for place, topic_id in partitions.items()}
