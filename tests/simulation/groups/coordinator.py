"""A group at its coordinator: claimed, loaded, and then run in turns that decide, write, replay and answer.

A group has at most one running transaction, including commits of offsets: an admitted commit is written before a
partition gets another owner. After a write with an unknown outcome, the group is dropped from memory and claimed again
under a new revision, which makes that write fail.

This module is a twin of `fairlead_broker.runtime.groups.coordinated_group` without the tasks and timers of an event
loop: with them, worlds would be too slow to find rules whose absence shows in only one of hundreds of worlds. The
production coordinator runs in `virtual_time`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fairlead_api.identifiers import LeaderEpoch, Offset, Revision, TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import (
    Group,
    GroupChange,
    GroupRecords,
    Heartbeat,
    HeartbeatReply,
    Leave,
    Topics,
    Turn,
)
from fairlead_broker.registry.group_records import (
    OFFSETS_PER_KEY,
    OffsetEntry,
    OffsetsRecord,
)
from groups import guards
from groups.claim import GroupClaim
from groups.keys import coordinator_key, key_of, offsets_key
from groups.messages import Answer, Commit, Committed, Offsets, Partition, ReadOffsets, Refused, Request
from simulator.store import Item, Key, Transaction

if TYPE_CHECKING:
    from groups.broker import Broker

DUE_SECONDS: Final = 0.05
"""Minimum delay before a deadline starts a turn."""


class Coordinator(GroupClaim):
    """The coordinator of one group."""

    def __init__(self, broker: Broker, name: str) -> None:
        """Create a coordinator that has not claimed the group."""
        super().__init__(broker, name)
        self.group: Group | None = None
        self.loaded_at = 0.0
        self.heard: dict[str, float] = {}
        """Time of each member's last accepted heartbeat, for the judge."""
        self.topics_seen: Topics | None = None
        """Topics in the previous turn."""
        self._queue: list[Request] = []
        self._in_round: list[Request] = []

    def take_over(self, items: dict[Key, Item]) -> None:
        """Coordinate the group with its records."""
        state, targets, members = None, {}, {}
        for key, item in items.items():
            if key[0] == "state":
                state = item.value
            elif key[0] == "target":
                targets[TopicId(key[2])] = item.value
            elif key[0] == "member":
                members[key[2]] = item.value
            elif key[0] == "offsets":
                for entry in item.value.entries:
                    self.entries[TopicId(key[2]), entry.partition] = entry
        self.group = Group(self.name, GroupRecords(state, targets, members), guards.sessions_begin(self))
        self.loaded_at = self._world.now
        self._world.judge.took_over(self.name, self.claim_revision)
        self._busy = False
        self.wake()

    def release(self) -> None:
        """Release the group as soon as no write of the group is running."""
        self._releasing = True
        if not self._busy:
            self._release()

    def _release(self) -> None:
        # The outcome of the deletion does not matter, because a claim without its broker's registration is void.
        deletion = Transaction(self.compares(), (), (coordinator_key(self.name),))
        self.broker.transact(deletion, lambda _: None)
        self.drop()

    def unanswered(self) -> Iterable[Request]:
        """Return the calls that wait for an answer."""
        waiting, self._queue, self._in_round = [*self._in_round, *self._queue], [], []
        return waiting

    # -- turns

    def take(self, request: Request) -> None:
        """Queue a call."""
        self._queue.append(request)
        self.wake()

    def wake(self) -> None:
        """Start a turn if none is running."""
        if not self._busy and not self.closed:
            if self._releasing:
                self._release()
            else:
                self._turn()

    def _turn(self) -> None:
        """Decide all queued heartbeats and leaves, and all due timeouts."""
        assert self.group is not None, "loaded"
        if not guards.may_answer(self.broker):
            # Heartbeats may have been lost, so every session starts at its full length under the next claim.
            self.drop()
            return
        world = self._world
        requests = [each for each in self._queue if isinstance(each.content, (Heartbeat, Leave))]
        self._queue = [each for each in self._queue if not isinstance(each.content, (Heartbeat, Leave))]
        events = [each.content for each in requests if isinstance(each.content, (Heartbeat, Leave))]
        topics = self.broker.topics
        turn = self.group.turn(events, topics, world.now, int(world.now * 1e6))
        world.judge.decided(self, events, turn)
        self.topics_seen = topics
        self._in_round = requests
        if turn.change is None:
            self._replied(turn, requests)
            self._commit_offsets()
        else:
            self._busy = True
            world.note("turn", self.broker.number, self.name, events, turn.change)
            self.send(turn, requests, self.portions(turn.change))

    def portions(self, change: GroupChange) -> Sequence[GroupChange]:
        """Split a change into transactions that leave room for the compares."""
        return list(change.portions(self._world.plan.operations_max - 2))

    def send(self, turn: Turn, requests: list[Request], portions: Sequence[GroupChange]) -> None:
        """Write one portion, and replay the change after the last portion."""
        first, *rest = portions
        puts = tuple((key_of(self.name, key), record, None) for key, record in first.puts.items())
        deletes = tuple(key_of(self.name, key) for key in sorted(first.deletes, key=repr))
        self.broker.transact(Transaction(self.compares(), puts, deletes), self._written, turn, requests, rest)

    def _written(
        self,
        answer: tuple[bool, Revision] | None,
        turn: Turn,
        requests: list[Request],
        rest: Sequence[GroupChange],
    ) -> None:
        if self.closed:
            return
        if answer is None:
            guards.in_doubt(self)
        elif not answer[0]:
            self.drop()
        elif rest:
            self.send(turn, requests, rest)
        else:
            self.stands(turn, requests)

    def stands(self, turn: Turn, requests: list[Request]) -> None:
        """Replay a written change, and answer the calls that wait for it."""
        assert self.group is not None, "loaded"
        self.group.commit(turn)
        self._replied(turn, requests)
        self._busy = False
        self._commit_offsets()

    def _replied(self, turn: Turn, requests: list[Request]) -> None:
        self._in_round = []
        for request, reply in zip(requests, turn.replies, strict=True):
            answer = Refused(reply.code) if isinstance(reply, ProblemError) else reply
            self._answer(request, answer)

    def _answer(self, request: Request, answer: Answer) -> None:
        if not guards.may_answer(self.broker):
            answer = Refused("coordination_unavailable")
        elif isinstance(answer, HeartbeatReply) and isinstance(request.content, Heartbeat):
            self._world.judge.answers(self, request.content.member_id, answer)
        elif isinstance(answer, Refused) and isinstance(request.content, Heartbeat):
            heartbeat = request.content
            self._world.judge.fences(self, heartbeat.member_id, heartbeat.member_epoch, answer.code)
        self.broker.answer(request, answer)

    # -- offsets

    def _commit_offsets(self) -> None:
        requests, self._queue = self._queue, []
        # Newer heartbeats are decided first, because a removed member must not commit.
        self._queue = [each for each in requests if isinstance(each.content, (Heartbeat, Leave))]
        commits: list[Request] = []
        for request in requests:
            if isinstance(request.content, ReadOffsets):
                found = {
                    each: self.entries[each].offset
                    for each in request.content.partitions
                    if each in self.entries
                }
                self._answer(request, Offsets(found))
            elif isinstance(request.content, Commit):
                try:
                    allowed = guards.check_commit(self, request.content)
                except ProblemError as problem:
                    self._answer(request, Refused(problem.code))
                    continue
                offsets = {each: request.content.offsets[each] for each in allowed}
                commits.append(replace(request, content=replace(request.content, offsets=offsets)))
        if commits:
            self._busy = True
            self._in_round = commits
            self.write_offsets(commits)
        elif self._queue:
            self.wake()
        else:
            self._rest()

    def write_offsets(self, commits: list[Request]) -> None:
        """Write all admitted commits in order."""
        entries = dict(self.entries)
        touched: set[tuple[TopicId, int]] = set()
        for request in commits:
            content = request.content
            assert isinstance(content, Commit), "only commits are written"
            for (topic_id, partition), offset in content.offsets.items():
                entries[topic_id, partition] = OffsetEntry(
                    partition=partition,
                    offset=Offset(offset),
                    leader_epoch=LeaderEpoch(0),
                    metadata=f"{content.member_id}:{content.member_epoch}",
                    committed_us=TimestampUs(int(self._world.now * 1e6)),
                )
                touched.add((topic_id, partition // OFFSETS_PER_KEY))
        puts = tuple(
            (
                offsets_key(self.name, topic_id, slot),
                OffsetsRecord(
                    entries=tuple(
                        entry
                        for (topic, partition), entry in sorted(entries.items())
                        if topic == topic_id and partition // OFFSETS_PER_KEY == slot
                    )
                ),
                None,
            )
            for topic_id, slot in sorted(touched)
        )
        self.broker.transact(Transaction(self.compares(), puts), self._offsets_written, commits, entries)

    def _offsets_written(
        self,
        answer: tuple[bool, Revision] | None,
        commits: list[Request],
        entries: dict[Partition, OffsetEntry],
    ) -> None:
        if self.closed:
            return
        if answer is None or not answer[0]:
            self.drop()
            return
        self.entries = entries
        self._in_round = []
        for request in commits:
            self._answer(request, Committed())
        self._busy = False
        self.wake()

    # -- time

    def _rest(self) -> None:
        """Wait until the next deadline."""
        assert self.group is not None, "loaded"
        deadline = self.group.deadline()
        self._timer += 1
        if deadline is not None:
            self.broker.after(max(DUE_SECONDS, deadline - self._world.now), self._due, self._timer)

    def _due(self, timer: int) -> None:
        if timer == self._timer:
            self.wake()
