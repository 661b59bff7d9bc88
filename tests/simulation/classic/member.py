"""A member with Kafka's classic protocol, as Kafka's clients behave: join, sync, heartbeats, and commits of offsets.

The leader of a generation assigns the partitions. A member gives up all its partitions before it joins again, after it
has tried to commit their offsets. A fault makes a member pause, crash or answer late.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups.classic.messages import (
    Accepted,
    Beat,
    Join,
    Joined,
    JoinedMember,
    Leave,
    Refusal,
    Sync,
    Synced,
)
from fairlead_broker.groups.classic.messages import Refused as Denied
from groups.messages import Commit, Committed, Offsets, Partition, ReadOffsets, Request
from simulator.process import Process

if TYPE_CHECKING:
    from classic.world import World

PATIENCE_SECONDS: Final = 1.0
"""Timeout of calls that do not wait for other members."""
SOON_SECONDS: Final = 0.1
"""Delay before a refused call is tried again."""
BEATS_A_SESSION: Final = 4
TOPIC: Final = TopicId("t")


class Member(Process):
    """A member as a sequence of processes."""

    world: World

    def __init__(self, world: World, number: int, group: str, instance_id: str | None) -> None:
        """Create a member that is not running."""
        super().__init__(world, number)
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: dict[Partition, int | None] = {}
        """Partitions of the member, with the next offset, or None until the committed offset is read."""
        self.settled = False
        """Whether the member has the assignment of its generation, and the group has not begun another."""
        self.leaving = False
        self._attempts = self._broker = 0
        self._call = self._commit = self._read = 0
        """Numbers of attempts of the running protocol call, commit and read; 0 if none is running."""

    # -- processes

    def start(self) -> None:
        """Start a process that joins the group."""
        super().start()
        self.leaving = False
        self.member_id, self._call, self._commit, self._read = "", 0, 0, 0
        self._lose_all()
        self.world.note("starts", self.number, self.instance_id)
        self._join()
        self.after(self.world.plan.commit_seconds, self._consume)

    def kill(self) -> None:
        """End the process at once, without a message."""
        if self.alive:
            self.world.note("dies", self.number, self.member_id)
            super().kill()
            self._lose_all()

    def leave(self, *, static: bool) -> None:
        """Leave the group, and end; a static member that returns ends without a message."""
        if not self.alive or self.leaving:
            return
        self.leaving = True
        self._lose_all()
        if not static:
            self._send(Leave(token=None, member_id=self.member_id, instance_id=self.instance_id))
        self.after(SOON_SECONDS, self.kill)

    def _lose_all(self) -> None:
        self.owned, self.generation, self.settled = {}, -1, False

    # -- calls

    def _send(self, content: Any, patience: float = PATIENCE_SECONDS) -> int:
        world = self.world
        self._attempts += 1
        self._broker = 1 + self._broker % world.plan.brokers
        request = Request(self.group, content, self.number, self.life, self._attempts)
        world.network.send(self.number, self._broker, world.brokers[self._broker].call, request)
        self.after(patience, self.answered, request, None)
        return self._attempts

    def answered(self, request: Request, answer: object) -> None:
        """Handle an answer, or None after a timeout."""
        if request.life != self.life or self.leaving:
            return
        content: Any = request.content
        match content:
            case Join() | Sync() | Beat() if request.attempt == self._call:
                self._call = 0
                self._protocol_answered(content, answer)
            case Commit() if request.attempt == self._commit:
                self._commit = 0
                if isinstance(answer, Committed):
                    self.world.judge.counts["committed"] += 1
            case ReadOffsets() if request.attempt == self._read:
                self._read = 0
                self._read_answered(content, answer)
            case _:
                pass

    def _join(self) -> None:
        if self._call or self.leaving:
            return
        plan = self.world.plan
        content = Join(
            token=None,
            member_id=self.member_id,
            new_id=f"m{self.number}-{self.life}-{self._attempts}",
            instance_id=self.instance_id,
            client_id=f"c{self.number}",
            client_host="",
            session_timeout_ms=int(plan.session_seconds * 1000),
            rebalance_timeout_ms=int(plan.rebalance_seconds * 1000),
            protocol_type="consumer",
            protocols=(("range", b""),),
            needs_known_id=plan.knows_ids,
        )
        longest = 2 * plan.rebalance_seconds + plan.initial_delay_seconds + PATIENCE_SECONDS
        self._call = self._send(content, longest)

    def _beat(self) -> None:
        if not self._call and self.settled:
            beat = Beat(
                token=None,
                member_id=self.member_id,
                instance_id=self.instance_id,
                generation=self.generation,
            )
            self._call = self._send(beat)

    def _protocol_answered(self, content: Join | Sync | Beat, answer: object) -> None:
        match answer:
            case Joined():
                self._joined(answer)
            case Synced():
                self._synced(answer)
            case Accepted():
                self.after(self.world.plan.session_seconds / BEATS_A_SESSION, self._beat)
            case Denied(refusal, member_id):
                self.world.judge.counts[f"refused {refusal.value}"] += 1
                self._denied(refusal, member_id)
            case _ if isinstance(content, Beat):
                self.after(SOON_SECONDS, self._beat)
            case _:
                # The member does not know whether its call was processed, and joins again.
                self._lose_all()
                self.after(SOON_SECONDS, self._join)

    def _denied(self, refusal: Refusal, member_id: str) -> None:
        match refusal:
            case Refusal.MEMBER_ID_REQUIRED:
                self.member_id = member_id
                self._join()
                return
            case Refusal.FENCED_INSTANCE_ID:
                self.kill()
                return
            case Refusal.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            case Refusal.REBALANCE_IN_PROGRESS if self.settled:
                self._commit_offsets()
            case _:
                pass
        self._lose_all()
        self.after(SOON_SECONDS, self._join)

    def _joined(self, answer: Joined) -> None:
        self.member_id, self.generation = answer.member_id, answer.generation
        assignments = {} if answer.skips_assignment else self._assignments(answer.members)
        sync = Sync(
            token=None,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=answer.generation,
            assignments=assignments,
        )
        self._call = self._send(sync, self.world.plan.rebalance_seconds + PATIENCE_SECONDS)

    def _assignments(self, members: tuple[JoinedMember, ...]) -> dict[str, bytes]:
        """Return the partitions of each member, spread at random, since clients may use any assignor."""
        if not members:
            return {}
        places = [each.member_id for each in members]
        self.world.schedule.rng.shuffle(places)
        shares: dict[str, list[int]] = {each: [] for each in places}
        for partition in range(self.world.plan.partitions):
            shares[places[partition % len(places)]].append(partition)
        return {each: json.dumps(share).encode() for each, share in shares.items()}

    def _synced(self, answer: Synced) -> None:
        partitions = json.loads(answer.assignment or b"[]")
        self.owned = {(TOPIC, partition): None for partition in partitions}
        self.settled = True
        self.world.note("assigned", self.number, self.member_id, self.generation, partitions)
        self._read = 0  # a running read may return an offset from before the previous owner's commit
        self._read_offsets()
        self.after(self.world.plan.session_seconds / BEATS_A_SESSION, self._beat)

    # -- offsets

    def _read_offsets(self) -> None:
        wanted = tuple(sorted(partition for partition, offset in self.owned.items() if offset is None))
        if wanted and not self._read and not self.leaving:
            self._read = self._send(ReadOffsets(wanted))

    def _read_answered(self, content: ReadOffsets, answer: object) -> None:
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
            if offset is not None and world.traffic:
                self.owned[partition] = offset + world.schedule.rng.randint(0, 4)
        self._commit_offsets()
        self.after(world.schedule.between(0.5, 1.5) * world.plan.commit_seconds, self._consume)

    def _commit_offsets(self) -> None:
        offsets = {partition: offset for partition, offset in self.owned.items() if offset is not None}
        if offsets and not self._commit and not self.leaving:
            self._commit = self._send(Commit(self.member_id, self.generation, offsets))

    def describe(self) -> dict[str, Any]:
        """Return the state of the member for the digest of a run."""
        owned = sorted(self.owned.items(), key=repr)
        return {"id": self.member_id, "generation": self.generation, "owned": owned, "alive": self.alive}
