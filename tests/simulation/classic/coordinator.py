"""A classic group at its coordinator: claimed, loaded, and then changed by one event after another.

An event is processed at once, also while a change is being written; a group writes one change at a time, and commits of
offsets after all changes. After a write with an unknown outcome, the group is dropped from memory and claimed again
under a new revision, which makes that write fail.

This module is a twin of `fairlead_broker.runtime.groups.coordinated_group` and `.classic_members` without the tasks and
timers of an event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from classic.keys import group_key, member_key
from fairlead_api.identifiers import LeaderEpoch, Offset, Revision, TimestampUs
from fairlead_broker.groups.classic.group import ClassicGroup
from fairlead_broker.groups.classic.messages import (
    Beat,
    ClassicChange,
    ClassicReply,
    ClassicTurn,
    Join,
    Leave,
    Sync,
)
from fairlead_broker.registry.group_records import OffsetEntry
from groups import guards
from groups.claim import GroupClaim
from groups.keys import coordinator_key, offsets_key
from groups.messages import Commit, Committed, Offsets, Partition, ReadOffsets, Refused, Request
from simulator.store import Item, Key, Transaction

if TYPE_CHECKING:
    from groups.broker import Broker

DUE_SECONDS: Final = 0.05
"""Minimum delay before a deadline is processed."""
AGAIN_SECONDS: Final = 0.2
"""Delay after a change that could not be written."""


class Coordinator(GroupClaim):
    """The coordinator of one group."""

    def __init__(self, broker: Broker, name: str) -> None:
        """Create a coordinator that has not claimed the group."""
        super().__init__(broker, name)
        self.group: ClassicGroup | None = None
        self._early: list[Request] = []
        """Calls that arrived before the group was loaded."""
        self._waiting: dict[int, Request] = {}
        """Joins, syncs and other events without an answer, by token."""
        self._tokens = 0
        self._changes: deque[ClassicChange] = deque()
        self._queue: list[Request] = []
        """Commits and reads of offsets."""

    def take_over(self, items: dict[Key, Item]) -> None:
        """Coordinate the group with its records."""
        record = items.get(group_key(self.name))
        members = {key[2]: item.value for key, item in items.items() if key[0] == "classic member"}
        for key, item in items.items():
            if key[0] == "offsets":
                self.entries[key[2], key[3]] = item.value
        began = guards.sessions_begin(self)
        self.group = ClassicGroup.load(None if record is None else record.value, members, began)
        self.group.initial_delay_seconds = self._world.plan.initial_delay_seconds
        self._world.judge.counts["take-overs"] += 1
        self._busy = False
        early, self._early = self._early, []
        for request in early:
            self.take(request)
        self.wake()

    def release(self) -> None:
        """Release the group as soon as no write of the group is running."""
        self._releasing = True
        self._work()

    def unanswered(self) -> Iterable[Request]:
        """Return the calls that wait for an answer."""
        return (*self._waiting.values(), *self._queue, *self._early)

    # -- events

    def take(self, request: Request) -> None:
        """Process a call."""
        if self.closed:
            self.broker.answer(request, Refused("coordination_unavailable"))
        elif self.group is None:
            self._early.append(request)
        elif not guards.may_answer(self.broker):
            self.broker.answer(request, Refused("coordination_unavailable"))
            self.drop()
        elif isinstance(request.content, Join | Sync | Beat | Leave):
            self._tokens += 1
            self._waiting[self._tokens] = request
            event = replace(request.content, token=self._tokens)
            self._took(self.group.handle(event, self._world.now))
        else:
            self._queue.append(request)
            self._work()

    def wake(self) -> None:
        """Process the deadlines that have passed."""
        if self.closed or self.group is None:
            return
        if not guards.may_answer(self.broker):
            # Heartbeats may have been lost, so every session starts at its full length under the next claim.
            self.drop()
            return
        self._took(self.group.expire(self._world.now))

    def _took(self, turn: ClassicTurn) -> None:
        if turn.change is not None:
            self._changes.append(turn.change)
        for token, reply in turn.replies:
            assert isinstance(token, int), "a token is a number"
            self.reply(self._waiting.pop(token), reply)
        self._work()
        self._rest()

    def reply(self, request: Request, reply: ClassicReply) -> None:
        """Answer a call."""
        if not guards.may_answer(self.broker):
            self.broker.answer(request, Refused("coordination_unavailable"))
            return
        self._world.judge.answers(self, request, reply)
        self.broker.answer(request, reply)

    def _rest(self) -> None:
        """Wait until the next deadline."""
        assert self.group is not None, "loaded"
        deadline = self.group.deadline()
        self._timer += 1
        if deadline < inf and not self.closed:
            self.broker.after(max(DUE_SECONDS, deadline - self._world.now), self._due, self._timer)

    def _due(self, timer: int) -> None:
        if timer == self._timer:
            self.wake()

    # -- writes

    def _work(self) -> None:
        if self._busy or self.closed:
            return
        if self._releasing:
            # The outcome of the deletion does not matter, because a claim without its broker's registration is void.
            deletion = Transaction(self.compares(), (), (coordinator_key(self.name),))
            self.broker.transact(deletion, lambda _: None)
            self.drop()
        elif self._changes:
            self.write(self._changes[0])
        elif self._queue:
            self._take_offsets()

    def write(self, change: ClassicChange) -> None:
        """Write a change in portions, with the group's record last."""
        assert self.group is not None, "loaded"
        if not guards.may_answer(self.broker):
            self._changes.popleft()
            self._took(self.group.not_stored(change, self._world.now))
            self.broker.after(AGAIN_SECONDS, self._work)
            return
        name = self.name
        operations: list[tuple[Key, Any]] = [(member_key(name, each), None) for each in sorted(change.gone)]
        operations += [(member_key(name, each), record) for each, record in change.members.items()]
        operations.append((group_key(name), change.group))
        size = self._world.plan.operations_max - 2
        portions = [operations[at : at + size] for at in range(0, len(operations), size)]
        self._busy = True
        self._send(change, portions)

    def _send(self, change: ClassicChange, portions: Sequence[list[tuple[Key, Any]]]) -> None:
        first, *rest = portions
        puts = tuple((key, value, None) for key, value in first if value is not None)
        deletes = tuple(key for key, value in first if value is None)
        transaction = Transaction(self.compares(), puts, deletes)
        self.broker.transact(transaction, self._written, change, rest)

    def _written(
        self,
        answer: tuple[bool, Revision] | None,
        change: ClassicChange,
        rest: Sequence[list[tuple[Key, Any]]],
    ) -> None:
        if self.closed:
            return
        if answer is None or not answer[0]:
            self.drop()
        elif rest:
            self._send(change, rest)
        else:
            assert self.group is not None, "loaded"
            self._busy = False
            self._changes.popleft()
            self._world.judge.counts["changes"] += 1
            self._took(self.group.stored(change))

    # -- offsets

    def _take_offsets(self) -> None:
        requests, self._queue = self._queue, []
        commits: list[tuple[Request, Commit]] = []
        for request in requests:
            content = request.content
            if isinstance(content, ReadOffsets):
                found = {
                    each: int(self.entries[each].offset)
                    for each in content.partitions
                    if each in self.entries
                }
                self.broker.answer(request, Offsets(found))
            elif isinstance(content, Commit):
                refusal = self.refusal(content)
                if refusal is None:
                    commits.append((request, content))
                else:
                    self.broker.answer(request, Refused(refusal))
        if commits:
            self._busy = True
            self._write_offsets(commits)

    def refusal(self, commit: Commit) -> str | None:
        """Return why a commit is refused, or None."""
        assert self.group is not None, "loaded"
        refusal = self.group.commit_refusal(commit.member_id, commit.member_epoch)
        return None if refusal is None else refusal.value

    def _write_offsets(self, commits: list[tuple[Request, Commit]]) -> None:
        entries: dict[Partition, OffsetEntry] = {}
        for _, commit in commits:
            for (topic, partition), offset in commit.offsets.items():
                entries[topic, partition] = OffsetEntry(
                    partition=partition,
                    offset=Offset(offset),
                    leader_epoch=LeaderEpoch(0),
                    metadata=f"{commit.member_id}:{commit.member_epoch}",
                    committed_us=TimestampUs(int(self._world.now * 1e6)),
                )
        puts = tuple(
            (offsets_key(self.name, topic, partition), entry, None)
            for (topic, partition), entry in entries.items()
        )
        transaction = Transaction(self.compares(), puts)
        self.broker.transact(transaction, self._offsets_written, commits, entries)

    def _offsets_written(
        self,
        answer: tuple[bool, Revision] | None,
        commits: list[tuple[Request, Commit]],
        entries: dict[Partition, OffsetEntry],
    ) -> None:
        if self.closed:
            return
        if answer is None or not answer[0]:
            # Without an answer, the members may assume that nothing is stored.
            self._queue = [*(request for request, _ in commits), *self._queue]
            self.drop()
            return
        self.entries |= entries
        self._busy = False
        for request, _ in commits:
            self.broker.answer(request, Committed())
        self._work()
