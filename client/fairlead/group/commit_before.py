"""Commits each batch of a group member before the batch is handed out: `commit="before"`.

Called by the consumer at each take. The batch is held back while its commit runs. A cancelled take leaves the batch
held back, and the next take continues with it. Must not know the calls that commit.
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
    """A batch that waits for its commit before it is handed out."""

    batch: ConsumerBatch
    committed: asyncio.Future[FairleadError | None]
    """Outcome of the commit: the error that refused it, or None."""
    is_taken_back: bool = False
    """Whether `committed` commits the position before the batch: its partition was paused after the first commit."""


class CommitBefore:
    """The batch of one membership that is committed and not handed out yet."""

    def __init__(self, session: GroupSession, reading: Reading) -> None:
        self._session = session
        self._reading = reading
        self.held: HeldBack | None = None

    async def next(self, take: Callable[[], Awaitable[ConsumerBatch | None]]) -> ConsumerBatch | None:
        """Return the next batch after its commit; `take` waits for a fetched batch. None if `take` returns None."""
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
        """Drop a held-back batch of a partition whose position the program has moved."""
        if self.held is not None and self.held.batch.topic_partition == partition:
            self.held = None

    def drop(self) -> Unseen | None:
        """Drop the held-back batch, which is then never handed out.

        Returns the commit to take back, if the member has owned the partition without interruption.
        """
        held, self.held = self.held, None
        owned = None if held is None else self._owned_hand(held)
        return None if held is None or owned is None else self._go_back(held, owned)

    def _is_ready(self, held: HeldBack) -> bool:
        """Return whether a batch is handed out now after its commit; otherwise move its partition back."""
        owned, error = self._owned_hand(held), held.committed.result()
        if owned is not None and error is None and not held.is_taken_back:
            # A batch of a partition in revocation is handed out too: the batch is committed, so no other member gets
            # it.
            if not owned.paused:
                return True
            # The batch is committed but its partition is paused: the commit is taken back for the partition's next
            # reader.
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
        """Move a partition's position back before the held-back batch."""
        reader = self._reading.reader
        self._reading.prefetch.seek(owned, reader.hand_offset, reader.hand_epoch)
        return Unseen(owned, reader.hand_offset, reader.hand_epoch, held.batch.next_offset)

    def _owned_hand(self, held: HeldBack) -> Cursor | None:
        """Return the cursor of a held-back batch; None if its partition was revoked, even if it was assigned again."""
        hand = self._reading.reader.hand
        return hand if self._reading.prefetch.cursors.get(held.batch.topic_partition) is hand else None
