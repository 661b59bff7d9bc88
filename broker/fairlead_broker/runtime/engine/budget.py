"""Limit for the memory of fetch answers that clients have not received yet.

The budget is used by `fetching` and by the server, which knows when a client has received its answer. The module must
not use HTTP. All code of the module runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

SMALL_ANSWER_BYTES = 256 << 10
"""Number of bytes that an answer may always take. An answer of this size is sent in one piece and its bytes are
returned at once."""
ANSWER_SHARE = 4
"""Divisor of the budget's free bytes; the quotient is the limit for one answer. The limit ensures that the first large
answers leave room for others."""


class AnswerBudget:
    """Budget for the bytes of fetch answers that are read but not yet sent.

    A full budget makes answers smaller instead of refusing them: a client with a small answer fetches again at once,
    while a refused client would have to wait. While the budget is crowded, connections of clients that do not read are
    closed.
    """

    __slots__ = ("_now", "_open", "_stall_seconds_max", "bytes_max", "taken")

    def __init__(self, bytes_max: int, *, stall_seconds_max: float, now: Callable[[], float]) -> None:
        """`stall_seconds_max`: maximum number of seconds without progress while the budget is crowded.

        `now` returns the monotonic time in seconds.
        """
        self.bytes_max = bytes_max
        self.taken = 0
        self._stall_seconds_max = stall_seconds_max
        self._now = now
        self._open: dict[HeldAnswer, None] = {}

    @property
    def crowded(self) -> bool:
        """Whether the budget has room only for a small answer."""
        return self.bytes_max - self.taken <= SMALL_ANSWER_BYTES

    def room(self) -> int:
        """Return the number of bytes that the next answer may take."""
        if self.crowded:
            self._cut_stalled()
        free = self.bytes_max - self.taken
        return max(SMALL_ANSWER_BYTES, free // ANSWER_SHARE)

    def hold(self) -> HeldAnswer:
        """Return the account of a new answer, which has not yet taken any bytes from the budget."""
        return HeldAnswer(self)

    def moved(self, answer: HeldAnswer) -> None:
        """Record progress of an answer, and move the answer to the end of the list of open answers."""
        self._open.pop(answer, None)
        self._open[answer] = None
        answer.progressed_at = self._now()

    def ended(self, answer: HeldAnswer) -> None:
        """Remove an answer that has ended from the list of open answers."""
        self._open.pop(answer, None)

    def _cut_stalled(self) -> None:
        """Abort stalled answers; the search stops at the first answer with recent progress."""
        since = self._now() - self._stall_seconds_max
        for answer in list(self._open):
            if answer.progressed_at > since:
                return
            answer.cut_off()


class HeldAnswer:
    """Bytes of one answer; the server releases the bytes when the answer is sent or has failed."""

    __slots__ = ("_budget", "_cut", "nbytes", "progressed_at")

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._cut: Callable[[], None] | None = None
        self.nbytes = 0
        self.progressed_at = 0.0

    def room(self) -> int:
        """Return the number of bytes that the answer may take."""
        return self._budget.room()

    @property
    def crowded(self) -> bool:
        """Whether the budget has room only for a small answer."""
        return self._budget.crowded

    def resize(self, nbytes: int) -> None:
        """Change the number of bytes that the answer takes."""
        self._budget.taken += nbytes - self.nbytes
        self.nbytes = nbytes

    def sending(self, cut: Callable[[], None]) -> None:
        """Start sending the answer in pieces.

        `cut` aborts the sending; `cut` is called if the client stalls while the budget is crowded.
        """
        self._cut = cut
        self._budget.moved(self)

    def moved(self) -> None:
        """Record that the client has received a piece of the answer."""
        self._budget.moved(self)

    def sent(self) -> None:
        """Record that the client has received all pieces sent so far; the answer continues later."""
        self._cut = None
        self._budget.ended(self)

    def cut_off(self) -> None:
        """Abort the sending of the answer.

        Only the first call has an effect, because the stream does not close at once.
        """
        cut, self._cut = self._cut, None
        self._budget.ended(self)
        if cut is not None:
            cut()

    def release(self) -> None:
        """Return all bytes of the answer to the budget; may be called more than once."""
        self.resize(0)
        self._cut = None
        self._budget.ended(self)
