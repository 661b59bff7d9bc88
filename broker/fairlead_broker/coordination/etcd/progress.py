"""When a watch asks etcd how far it has come, which answer is the wished one, and when silence is too long.

For `watch`. etcd answers in order, with an empty response, but leaves a request without answer while the watch is
still catching up; so a wish is repeated until it is fulfilled. Pure: times are arguments, in seconds of one
monotonic clock.
"""

from __future__ import annotations

from typing import Final

REPEAT_SECONDS: Final = (0.05, 0.1, 0.2, 0.5)
"""Pauses before a wish is repeated; the last one repeats."""
UNANSWERED_SECONDS: Final = 0.2
"""After so long without an answer to a request none is waited for."""
SILENCES_MAX: Final = 8
"""How many times longer a silence may be after several in a row: catching up may take its time."""


class ProgressRequests:
    """What was asked and answered on the streams of one watch, one stream after the other."""

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._silences = 1
        self._wished = False
        self._wished_number = 0
        """The first request that is younger than the wish; earlier ones may tell of an older revision."""
        self._repeats = 0
        self._sent = 0
        self._answered = 0
        self._sent_at = 0.0
        self._response_at = 0.0
        self._asked_at: float | None = None
        """Time of the first request since the last answer."""

    def begin(self, now: float) -> None:
        """Start on a new stream. A wish is kept."""
        self._sent = self._answered = self._repeats = 0
        self._wished_number = 1
        self._response_at, self._asked_at = now, None

    def wish(self) -> None:
        """Wish for an answer to a request that is still to be sent."""
        self._wished, self._wished_number, self._repeats = True, self._sent + 1, 0

    def due_at(self) -> float:
        """Return when to look again: a request is to be sent then, or the silence has become too long."""
        silence = self._silence_seconds * self._silences
        since = self._response_at if self._asked_at is None else self._asked_at
        if not self._wished:
            return since + silence
        if self._sent < self._wished_number:
            return self._response_at
        return min(
            since + silence, self._sent_at + REPEAT_SECONDS[min(self._repeats, len(REPEAT_SECONDS) - 1)]
        )

    def is_silent(self, now: float) -> bool:
        """Whether etcd was asked and has said nothing for too long. The next silence may be longer."""
        silent = self._asked_at is not None and now >= self._asked_at + self._silence_seconds * self._silences
        if silent:
            self._silences = min(2 * self._silences, SILENCES_MAX)
        return silent

    def send(self, now: float) -> None:
        """Take note of a request that is being sent."""
        self._repeats += self._sent >= self._wished_number
        if now >= self._sent_at + UNANSWERED_SECONDS:
            # A late answer counts as the answer to this request, and may carry an older revision: a waiter that needs a
            # newer one asks again. Waiting for lost answers would delay every waiter, and starve one that keeps asking.
            self._answered = self._sent
        self._sent += 1
        self._sent_at = now
        if self._asked_at is None:
            self._asked_at = now

    def on_response(self, now: float) -> None:
        """Take note of a response of any kind."""
        self._response_at, self._asked_at = now, None
        self._silences = 1

    def fulfils_wish(self) -> bool:
        """Take note of an answer to a request; whether it is one that was wished for."""
        self._answered = min(self._answered + 1, self._sent)
        if not self._wished or self._answered < self._wished_number:
            return False
        self._wished = False
        return True
