"""Bounds on the bytes that unfinished calls hold in memory: one for appends, one for answers.

Called by `producing`, the partitions, `fetching`, and by the server, which knows when a reader has its answer. It must
not know HTTP. Everything runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

SMALL_ANSWER_BYTES = 256 << 10
"""Bytes that an answer may hold however little is free: it is sent in one piece and released at once."""
ANSWER_SHARE = 4
"""One answer gets at most this fraction of the free bytes, so that the first large readers leave room for others."""


class ByteBudget:
    """Counts bytes taken and given back; never goes above its bound except for one first batch."""

    __slots__ = ("bytes_max", "taken")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken = 0

    def take(self, nbytes: int) -> bool:
        """Take bytes if there is room; an empty budget lets any size in, so that nothing starves."""
        if self.taken and self.taken + nbytes > self.bytes_max:
            return False
        self.taken += nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        """Return taken bytes to the budget."""
        self.taken -= nbytes
        assert self.taken >= 0, "more bytes given back than were taken"


class AnswerBudget:
    """Bytes of fetch answers between the log and their readers.

    The budget limits by making answers smaller, not by refusing: a reader with a small answer asks again, a refused one
    would have to wait. While the budget is crowded, readers that take no bytes are cut off.
    """

    __slots__ = ("_now", "_open", "_stall_seconds_max", "bytes_max", "taken")

    def __init__(self, bytes_max: int, *, stall_seconds_max: float, now: Callable[[], float]) -> None:
        """`stall_seconds_max`: how long a reader may take no bytes while the budget is crowded; `now`: in seconds."""
        self.bytes_max = bytes_max
        self.taken = 0
        self._stall_seconds_max = stall_seconds_max
        self._now = now
        self._open: dict[HeldAnswer, None] = {}

    @property
    def crowded(self) -> bool:
        """Whether only small answers fit."""
        return self.bytes_max - self.taken <= SMALL_ANSWER_BYTES

    def room(self) -> int:
        """Return the bytes that the next answer may have."""
        if self.crowded:
            self._cut_stalled()
        free = self.bytes_max - self.taken
        return max(SMALL_ANSWER_BYTES, free // ANSWER_SHARE)

    def hold(self) -> HeldAnswer:
        """Begin an answer."""
        return HeldAnswer(self)

    def moved(self, answer: HeldAnswer) -> None:
        """Move an answer to the end of the order of progress: it moved last."""
        self._open.pop(answer, None)
        self._open[answer] = None
        answer.progressed_at = self._now()

    def ended(self, answer: HeldAnswer) -> None:
        """Drop an ended answer."""
        self._open.pop(answer, None)

    def _cut_stalled(self) -> None:
        """End stalled answers. They are in order of progress, so the first answer that moves ends the search."""
        since = self._now() - self._stall_seconds_max
        for answer in list(self._open):
            if answer.progressed_at > since:
                return
            answer.cut_off()


class HeldAnswer:
    """Bytes of one answer; the server releases it when the reader has it, or never will."""

    __slots__ = ("_budget", "_cut", "nbytes", "progressed_at")

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._cut: Callable[[], None] | None = None
        self.nbytes = 0
        self.progressed_at = 0.0

    def room(self) -> int:
        """Number of bytes that the answer may have."""
        return self._budget.room()

    @property
    def crowded(self) -> bool:
        """Whether only a small answer fits."""
        return self._budget.crowded

    def resize(self, nbytes: int) -> None:
        """Hold this many bytes from now on."""
        self._budget.taken += nbytes - self.nbytes
        self.nbytes = nbytes

    def sending(self, cut: Callable[[], None]) -> None:
        """Begin to send in pieces; `cut` ends it when the reader stalls while the budget is crowded."""
        self._cut = cut
        self._budget.moved(self)

    def moved(self) -> None:
        """Note that the reader took a piece."""
        self._budget.moved(self)

    def sent(self) -> None:
        """Note that the reader has all sent pieces; the answer continues later."""
        self._cut = None
        self._budget.ended(self)

    def cut_off(self) -> None:
        """End the sending, once only: the stream does not end at once."""
        cut, self._cut = self._cut, None
        self._budget.ended(self)
        if cut is not None:
            cut()

    def release(self) -> None:
        """Release all bytes; may be called twice."""
        self.resize(0)
        self._cut = None
        self._budget.ended(self)
