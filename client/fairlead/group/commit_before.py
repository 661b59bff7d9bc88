"""Commits each batch of a group member before the batch is handed out: `commit="before"`.

The consumer calls this module for each take, which is a call that waits for a batch. The batch is held back while its
commit runs. If a take is cancelled, the batch stays held back, and the next take continues with the same batch. The
module must not depend on how a commit is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fairlead.errors import FairleadError
from fairlead.group.commits import Unseen
from fairlead.group.member import is_fenced
from fairlead.group.partitions import Reading
from fairlead.group.session import GroupSession
from fairlead.reading.cursors import Cursor
from fairlead.records import ConsumerBatch
from fairlead.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class HeldBack:
    """A batch that is handed out after its commit."""

    batch: ConsumerBatch
    committed: asyncio.Future[FairleadError | None]
    """Outcome of the commit: the error of the refused commit, or None."""
    is_taken_back: bool = False
    """Whether `committed` commits the position before the batch, because the batch's partition was paused after the
    first commit."""


class CommitBefore:
    """The batch of one group member that waits for its commit and has not been handed out yet."""

    def __init__(self, session: GroupSession, reading: Reading) -> None:
        self._session = session
        self._reading = reading
        self.held: HeldBack | None = None

    async def next(self, take: Callable[[], Awaitable[ConsumerBatch | None]]) -> ConsumerBatch | None:
        """Return the next batch after its commit, or None if `take`, which waits for a fetched batch, returns None."""
        while True:
            held = self.held
            if held is None:
                batch = await take()
                if batch is None:
                    return None
                held = self.held = HeldBack(batch, self._session.begin_commit())
            await asyncio.wait([held.committed])
            if self.held is not held:
                continue
            self.held = None
            if self._is_ready(held):
                return held.batch

    def leave(self, partition: TopicPartition) -> None:
        """Drop the held-back batch if the program has moved the position of its partition."""
        if self.held is not None and self.held.batch.topic_partition == partition:
            self.held = None

    def drop(self) -> Unseen | None:
        """Drop the held-back batch, which must not be handed out.

        Returns the commit to undo, if the member has owned the partition without interruption since that commit.
        """
        held, self.held = self.held, None
        owned = None if held is None else self._owned_hand(held)
        return None if held is None or owned is None else self._go_back(held, owned)

    def _is_ready(self, held: HeldBack) -> bool:
        """Return whether a committed batch may be handed out; otherwise move the partition's position back."""
        owned, error = self._owned_hand(held), held.committed.result()
        if owned is not None and error is None and not held.is_taken_back:
            # A batch of a partition that is being revoked is also handed out: the batch is committed, so no other
            # member will read it.
            if not owned.paused:
                return True
            # The batch is committed, but its partition is paused: the commit is undone, so that the next reader of the
            # partition gets the batch.
            before = self._session.begin_take_back(self._go_back(held, owned))
            self.held = HeldBack(held.batch, before, is_taken_back=True)
            return False
        if owned is not None and error is not None:
            self._go_back(held, owned)
            self._reading.wake()
        self._session.finished()
        if error is not None and not is_fenced(error):
            raise error
        return False

    def _go_back(self, held: HeldBack, owned: Cursor) -> Unseen:
        """Move a partition's position back to the start of the held-back batch."""
        reader = self._reading.reader
        self._reading.prefetch.seek(owned, reader.hand_offset, reader.hand_epoch)
        return Unseen(owned, reader.hand_offset, reader.hand_epoch, held.batch.next_offset)

    def _owned_hand(self, held: HeldBack) -> Cursor | None:
        """Return the cursor of a held-back batch; None if the partition was revoked, even if assigned again later."""
        hand = self._reading.reader.hand
        return hand if self._reading.prefetch.cursors.get(held.batch.topic_partition) is hand else None
