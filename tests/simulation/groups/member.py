"""A member of a group: processes that come and go, one heartbeat under way at a time, and offsets to commit.

It holds to the rules of a client: it stops and commits before it gives a partition up, says what it owns as long as
it may still commit it, and drops everything when it is fenced. A fault makes it stand still, die, or take too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups import Heartbeat, HeartbeatReply, Leave, Subscription
from groups.messages import Answer, Commit, Committed, Offsets, Partition, ReadOffsets, Refused, Request
from simulator.process import Process

if TYPE_CHECKING:
    from groups.world import World

PATIENCE_SECONDS: Final = 1.0
"""How long an answer is waited for."""
SOON_SECONDS: Final = 0.1
"""Before a refused call is tried again."""
INSTANCE_SECONDS: Final = 0.3
"""Before another attempt to join in the place of a process that may be dead."""
SESSIONS_OF_PATIENCE: Final = 2
"""For so long these attempts go on."""
FENCED: Final = frozenset({"member_fenced", "member_not_found"})


class Member(Process):
    """One member, process after process."""

    def __init__(self, world: World, number: int, group: str, instance_id: str | None) -> None:
        """Be there, switched off."""
        super().__init__(world, number)  # type: ignore[arg-type]
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.epoch = 0
        self.owned: dict[Partition, int | None] = {}
        """What it may commit, with the next offset; None until the committed one is read."""
        self.giving_up: set[Partition] = set()
        """Of the owned: consumed no longer, and given up as soon as all is committed."""
        self.topics: frozenset[str] = frozenset()
        self.pattern: str | None = None
        self.joined = False
        self.slow_until = 0.0
        """Until then nothing is given up, as by a callback that hangs."""
        self.leaving = False
        self._world = world
        self._attempts = 0
        self._heartbeat = 0
        """Attempt of the heartbeat under way, 0 for none."""
        self._commit = 0
        self._read = 0
        self._whole = True
        """Whether the next heartbeat says everything."""
        self._resubscribed = False
        self._began = 0.0
        self._due = 0
        self._broker = 0

    # -- processes

    def start(self) -> None:
        """Begin a process, which joins."""
        self.life += 1
        self.alive, self.leaving, self.paused_until = True, False, None
        self.slow_until = 0.0
        self._backlog.clear()
        if not self.member_id or not self._world.plan.same_id or self.instance_id is not None:
            self.member_id = f"m{self.number}-{self.life}"
        self._world.note("starts", self.number, self.member_id, self.instance_id)
        self._lose()
        self._heartbeat = self._commit = self._read = 0
        self._began = self._world.now
        self.begin()
        self.after(self._world.plan.commit_seconds, self._go_on)

    def begin(self) -> None:
        """Join."""
        self._beat()

    def kill(self) -> None:
        """End the process at once; nobody hears of it."""
        if self.alive:
            self._world.note("dies", self.number, self.member_id)
            self.alive = self.joined = False
            self.life += 1
            self.owned = {}
            self._world.judge.owns(self)

    def leave(self, *, static: bool) -> None:
        """Commit nothing more, say goodbye, and end."""
        if not self.alive or self.leaving:
            return
        self.leaving = True
        self.lose_all()
        self._send(Leave(self.member_id, self.epoch or None, static))
        self.after(SOON_SECONDS, self.kill)

    def subscribe(self, topics: frozenset[str], pattern: str | None) -> None:
        """Want other topics from now on."""
        self.topics, self.pattern, self._whole = topics, pattern, True
        # A late heartbeat may bring the old ones back, so that from now on every one has to say it.
        self._resubscribed = True

    def _lose(self) -> None:
        self.epoch, self.joined, self._whole = 0, False, True
        self.lose_all()

    def lose_all(self) -> None:
        """Own nothing, at once."""
        self.owned = {}
        self.giving_up = set()
        self._world.judge.owns(self)

    # -- calls

    def _send(self, content: Heartbeat | Leave | Commit | ReadOffsets) -> int:
        world = self._world
        self._attempts += 1
        self._broker = 1 + self._broker % world.plan.brokers
        request = Request(self.group, content, self.number, self.life, self._attempts)
        world.network.send(self.number, self._broker, world.brokers[self._broker].call, request)
        self.after(PATIENCE_SECONDS, self.answered, request, None)
        return self._attempts

    def answered(self, request: Request, answer: Answer | None) -> None:
        """Hear an answer, or that none has come in time; what comes late is not listened to."""
        if request.life != self.life or self.leaving:
            return
        match request.content:
            case Heartbeat() if self.awaits(request):
                self._heartbeat = 0
                self._heartbeat_answered(answer)
            case Commit() if request.attempt == self._commit:
                self._commit = 0
                self._commit_answered(request.content, answer)
            case ReadOffsets() if request.attempt == self._read:
                self._read = 0
                self._read_answered(request.content, answer)
            case _:
                pass

    def awaits(self, request: Request) -> bool:
        """Say whether this heartbeat is the one under way; the answer to an earlier one is of another time."""
        return request.attempt == self._heartbeat

    # -- heartbeats

    def _beat(self) -> None:
        """Send a heartbeat now, if none is under way."""
        if self._heartbeat or not self.alive or self.leaving:
            return
        plan = self._world.plan
        subscription, owned = None, None
        if self._whole:
            subscription = Subscription(
                topics=self.topics,
                pattern=self.pattern,
                instance_id=self.instance_id,
                rack=None,
                assignor=plan.assignor,
                session_timeout_ms=int(plan.session_seconds * 1000),
                rebalance_timeout_ms=int(plan.rebalance_seconds * 1000),
            )
        if self.epoch or self._whole:
            owned = self.owned_by_topic()
        self._whole = self._resubscribed
        self._heartbeat = self._send(Heartbeat(self.member_id, self.epoch, subscription, owned))

    def owned_by_topic(self) -> Mapping[TopicId, frozenset[int]]:
        """Say what is owned, that which is being given up included."""
        topics: dict[TopicId, set[int]] = {}
        for topic_id, partition in sorted(self.owned):
            topics.setdefault(topic_id, set()).add(partition)
        return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}

    def _beat_in(self, seconds: float) -> None:
        self._due += 1
        self.after(seconds, self._beat_due, self._due)

    def _beat_due(self, due: int) -> None:
        if due == self._due:
            self._beat()

    def _heartbeat_answered(self, answer: Answer | None) -> None:
        if isinstance(answer, HeartbeatReply):
            self._world.judge.told(self, answer.member_epoch)
            self.epoch, self.joined = answer.member_epoch, True
            if answer.assignment is not None:
                self.assign(answer.assignment)
            self._world.judge.owns(self)
            self._beat_in(max(answer.heartbeat_interval_ms / 1000, SOON_SECONDS / 10))
            return
        if isinstance(answer, Refused) and answer.code in FENCED:
            self.fenced(answer.code)
        elif isinstance(answer, Refused) and answer.code == "instance_fenced":
            self._whole = True
            self.superseded()
            return
        self._whole = True
        self._beat_in(self._world.schedule.between(0.2, 1.0) * SOON_SECONDS)

    def fenced(self, code: str) -> None:
        """Own nothing any more, and join anew."""
        self._world.note("fenced:", self.number, self.member_id, code)
        self._world.judge.counts[f"fenced {code}"] += 1
        self._began, self.slow_until = self._world.now, 0.0
        self._lose()

    def superseded(self) -> None:
        """Another process has this instance id: it may be the dead one before this, so come again for a while."""
        self._world.judge.counts["instance fenced"] += 1
        if self._world.now > self._began + SESSIONS_OF_PATIENCE * self._world.plan.session_seconds:
            self.kill()
        else:
            self._beat_in(INSTANCE_SECONDS)

    def assign(self, assignment: Mapping[TopicId, frozenset[int]]) -> None:
        """Take what is new, begin to give up what is no longer there."""
        assigned = {
            (topic, partition) for topic, partitions in assignment.items() for partition in partitions
        }
        gained = assigned - set(self.owned)
        lost = set(self.owned) - assigned
        for partition in sorted(gained):
            self.owned[partition] = None
        kept = self.giving_up & assigned
        for partition in kept:
            # Taken back before it was given up; whether more was committed meanwhile is read anew.
            self.owned[partition] = None
        self.giving_up -= kept
        self._world.note("assigned", self.number, self.member_id, self.epoch, sorted(assigned))
        lost -= self.giving_up
        if lost:
            self.giving_up |= lost
            self._world.judge.gives_up(self, lost)
            self.wind_down(lost)
        if gained or kept:
            self._read = 0  # an answer under way may tell of a time before somebody else had them
            self._read_offsets()

    def wind_down(self, lost: set[Partition]) -> None:
        """Finish what was begun in the lost partitions, then give them up."""
        world = self._world
        seconds = world.schedule.between(0.0, world.plan.wind_seconds)
        self.after(max(seconds, self.slow_until - world.now), self._give_up, lost)

    def _give_up(self, lost: set[Partition]) -> None:
        given = lost & self.giving_up
        if not given:
            return
        if self._commit and self._world.schedule.happens(0.7):
            # A commit is under way: wait for it, as most do; who does not wait loses that commit.
            self.after(SOON_SECONDS, self._give_up, lost)
            return
        for partition in given:
            self.owned.pop(partition, None)
        self.giving_up -= given
        self._world.judge.owns(self)
        self._due += 1
        self._beat_now()

    def _beat_now(self) -> None:
        if self._heartbeat:
            self.after(SOON_SECONDS / 4, self._beat_now)
        else:
            self._beat()

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

    def _go_on(self) -> None:
        """Read some records of each partition, and commit what is behind them."""
        world = self._world
        for partition, offset in self.owned.items():
            if offset is not None and partition not in self.giving_up and world.traffic:
                self.owned[partition] = offset + world.schedule.rng.randint(0, 4)
        offsets = {partition: offset for partition, offset in self.owned.items() if offset is not None}
        if offsets and not self._commit and not self.leaving:
            self._commit = self._send(Commit(self.member_id, self.epoch, offsets))
        self.after(world.schedule.between(0.5, 1.5) * world.plan.commit_seconds, self._go_on)

    def _commit_answered(self, content: Commit, answer: Answer | None) -> None:
        if isinstance(answer, Committed):
            self._world.judge.counts["committed"] += 1
        elif isinstance(answer, Refused):
            self._world.judge.counts[f"commit {answer.code}"] += 1
            if content.member_epoch != self.epoch:
                return
            if answer.code in FENCED:
                self.fenced(answer.code)
                self._beat()
            elif answer.code == "stale_member_epoch":
                self._whole = True
                self._beat()


def describe(member: Member) -> dict[str, Any]:
    """Sum up a member for the digest of a run."""
    return {
        "id": member.member_id,
        "epoch": member.epoch,
        "owned": sorted(member.owned.items(), key=repr),
        "alive": member.alive,
    }
