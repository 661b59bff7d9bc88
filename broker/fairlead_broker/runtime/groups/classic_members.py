"""Members of the classic protocol in one coordinated group: their waiting calls, and changes not stored yet.

Used by `coordinated_group`, which owns the timer and the writes. The package `fairlead_broker.groups.classic` decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from fairlead_api.identifiers import PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import member_not_found
from fairlead_broker.groups.classic.group import ClassicGroup
from fairlead_broker.groups.classic.messages import (
    ClassicChange,
    ClassicEvent,
    ClassicReply,
    ClassicTurn,
    Refusal,
)
from fairlead_broker.runtime.groups import refusals as group_refusals

EventOf: TypeAlias = Callable[[object], ClassicEvent]
"""Function that returns the event of a call, given the token with which the group returns the reply to the call."""


class ClassicMembers:
    """Classic members of one group, from its claim until the group is dropped."""

    __slots__ = ("_waiting", "changes", "group", "name")

    def __init__(self, name: str, group: ClassicGroup) -> None:
        self.name = name
        self.group = group
        self._waiting: set[asyncio.Future[ClassicReply]] = set()
        self.changes: deque[ClassicChange] = deque()
        """Changes to be written, in order."""

    def ask(self, event_of: EventOf, now: float) -> asyncio.Future[ClassicReply]:
        """Process an event; return the future of its reply."""
        answer: asyncio.Future[ClassicReply] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)
        answer.add_done_callback(self._waiting.discard)
        self._take(self.group.handle(event_of(answer), now))
        return answer

    def expire(self, now: float) -> None:
        """Process the deadlines that have passed."""
        self._take(self.group.expire(now))

    def written(self) -> None:
        """Continue after the first change was written."""
        self._take(self.group.stored(self.changes.popleft()))

    def not_written(self, now: float) -> None:
        """Continue after the first change was not written."""
        self._take(self.group.not_stored(self.changes.popleft(), now))

    def let_go(self, problem: ProblemError) -> None:
        """Refuse all waiting calls, because the group is dropped."""
        self.changes.clear()
        for answer in tuple(self._waiting):
            if not answer.done():
                answer.set_exception(problem)

    # -- checks

    def check_empty(self) -> None:
        """Raise `group_not_empty` if the group has members."""
        if self.group.members:
            raise group_refusals.group_not_empty(self.name, len(self.group.members))

    def check_commit(self, member_id: str | None, generation: int, principal: str | None = None) -> None:
        """Check that a commit comes from a member of the current generation.

        Raises `member_not_found`, or `stale_member_epoch`, whose datum `classic` is the name of Kafka's error. Raises
        `group_not_empty` for a commit by a program that is not a member.
        """
        del principal
        if member_id is None:
            self.check_empty()
            return
        refusal = self.group.commit_refusal(member_id, generation)
        if refusal is Refusal.UNKNOWN_MEMBER_ID:
            raise member_not_found(self.name, member_id)
        if refusal is not None:
            detail = (
                f"group {self.name} is in generation {self.group.generation}, the commit has {generation}"
            )
            raise ProblemError("stale_member_epoch", detail, data={"classic": refusal.value})

    def check_committed_partition(
        self, member_id: str | None, topic_id: TopicId, partition: PartitionIndex
    ) -> None:
        """Accept every partition: only the leader of the generation knows each member's partitions."""

    def _take(self, turn: ClassicTurn) -> None:
        if turn.change is not None:
            self.changes.append(turn.change)
        for token, reply in turn.replies:
            assert isinstance(token, asyncio.Future), "a token is the future of its reply"
            # The calling task may have been cancelled, because its client has disconnected.
            if not token.done():
                token.set_result(reply)
