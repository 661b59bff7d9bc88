"""Progress requests of a watch: when to send a request, which answer counts, and how long etcd may be silent.

`watch` uses this module. etcd answers progress requests in order, with an empty response, but not while the watch
is still catching up. A progress request is therefore repeated until etcd answers it. The class is pure: times are
arguments, in seconds of one monotonic clock.
"""

from __future__ import annotations

from typing import Final

REPEAT_SECONDS: Final = (0.05, 0.1, 0.2, 0.5)
"""Seconds before a request is repeated, by number of repeats. After the listed pauses, the last pause is repeated."""
UNANSWERED_SECONDS: Final = 0.2
"""Seconds after which an unanswered progress request is treated as answered."""
SILENCES_MAX: Final = 8
"""Maximum factor by which repeated silences extend the allowed silence, because a watch may need a long time to catch
up.
"""


class ProgressRequests:
    """Progress requests and their answers on the consecutive streams of one watch."""

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._silences = 1
        self._wished = False
        self._wished_number = 0
        """Number of the first request sent after `wish` was called; answers to earlier requests may have an older
        revision.
        """
        self._repeats = 0
        self._sent = 0
        self._answered = 0
        self._sent_at = 0.0
        self._response_at = 0.0
        self._asked_at: float | None = None
        """Time of the first request after the last response, or None if there is no such request."""

    def begin(self, now: float) -> None:
        """Reset the state for a new stream, but keep a progress request by `wish` that is still unanswered."""
        self._sent = self._answered = self._repeats = 0
        self._wished_number = 1
        self._response_at, self._asked_at = now, None

    def wish(self) -> None:
        """Request progress. Accept only an answer to a progress request that is sent after this call."""
        self._wished, self._wished_number, self._repeats = True, self._sent + 1, 0

    def due_at(self) -> float:
        """Return the time of the next check, when a request must be sent or the silence has become too long."""
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
        """Return whether etcd has been silent for too long after a request.

        After each silence that was too long, the allowed silence is doubled, up to a maximum.
        """
        silent = self._asked_at is not None and now >= self._asked_at + self._silence_seconds * self._silences
        if silent:
            self._silences = min(2 * self._silences, SILENCES_MAX)
        return silent

    def send(self, now: float) -> None:
        """Record that a request is being sent."""
        self._repeats += self._sent >= self._wished_number
        if now >= self._sent_at + UNANSWERED_SECONDS:
            # A late answer is treated as the answer to this request, although its revision may be older: a caller that
            # needs a newer revision calls `wish` again. Waiting for lost answers would delay every caller, and a
            # caller that repeats its requests would never get an answer.
            self._answered = self._sent
        self._sent += 1
        self._sent_at = now
        if self._asked_at is None:
            self._asked_at = now

    def on_response(self, now: float) -> None:
        """Record a response of any kind."""
        self._response_at, self._asked_at = now, None
        self._silences = 1

    def fulfils_wish(self) -> bool:
        """Record an answer to a progress request, and return whether it reports the progress requested by `wish`."""
        self._answered = min(self._answered + 1, self._sent)
        if not self._wished or self._answered < self._wished_number:
            return False
        self._wished = False
        return True
