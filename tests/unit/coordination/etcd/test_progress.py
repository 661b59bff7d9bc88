"""Progress requests from an etcd watch, which the watch sends after a silence or at the request of its reader."""

from __future__ import annotations

from fairlead_broker.coordination.etcd.progress import (
    REPEAT_SECONDS,
    SILENCES_MAX,
    UNANSWERED_SECONDS,
    ProgressRequests,
)


def begun(silence_seconds: float = 3.0) -> ProgressRequests:
    """Return the progress requests for a stream that began at 100 s."""
    progress = ProgressRequests(silence_seconds)
    progress.begin(100.0)
    return progress


def test_a_quiet_stream_is_asked_after_a_silence() -> None:
    """A stream requests progress if no event has arrived for the silence time, which each event restarts."""
    progress = begun()
    first = progress.due_at()
    progress.on_response(102.0)

    assert first == 103.0
    assert progress.due_at() == 105.0
    assert not progress.is_silent(105.0), "no progress was requested yet"


def test_a_stream_without_an_answer_for_as_long_again_is_silent() -> None:
    """A stream counts as silent when a progress request stays unanswered for another silence time."""
    progress = begun()
    progress.send(103.0)

    assert progress.due_at() == 106.0
    assert not progress.is_silent(105.9)
    assert progress.is_silent(106.0)


def test_an_answer_to_an_own_request_is_not_passed_on() -> None:
    """The answer to a progress request that the watch itself sent is not passed to the reader."""
    progress = begun()
    progress.send(103.0)
    progress.on_response(103.1)

    assert not progress.fulfils_wish()
    assert not progress.is_silent(200.0)


def test_a_wish_is_sent_at_once_and_fulfilled_once() -> None:
    """A reader's request is sent at once and answered once."""
    progress = begun()
    progress.wish()
    due = progress.due_at()
    progress.send(100.5)
    progress.on_response(100.6)

    assert due <= 100.5
    assert progress.fulfils_wish()
    assert not progress.fulfils_wish()


def test_an_answer_to_an_earlier_request_does_not_fulfil_a_wish() -> None:
    """The answer to an earlier request does not fulfil a reader's request, because its revision may be older."""
    progress = begun()
    progress.send(103.0)
    progress.wish()
    progress.send(103.1)
    early, wished = progress.fulfils_wish(), progress.fulfils_wish()

    assert (early, wished) == (False, True)


def test_a_wish_without_answer_is_repeated_ever_slower() -> None:
    """A reader's unanswered request is repeated at increasing intervals, for example while a watch catches up."""
    progress = begun(silence_seconds=100.0)
    progress.wish()
    now, pauses = 100.0, []
    for _ in range(6):
        progress.send(now)
        pauses.append(round(progress.due_at() - now, 6))
        now = progress.due_at()

    assert pauses == [*REPEAT_SECONDS, REPEAT_SECONDS[-1], REPEAT_SECONDS[-1]]


def test_answers_left_out_delay_a_wish_but_do_not_lose_it() -> None:
    """If etcd omits answers, the reader's request is fulfilled later, by the answer to a repeated request."""
    progress = begun()
    progress.send(101.0)
    progress.send(101.1)
    progress.wish()
    fulfilled = []
    for n in range(3):
        now = 101.2 + 0.1 * n
        progress.send(now)
        progress.on_response(now)
        fulfilled.append(progress.fulfils_wish())

    assert fulfilled == [False, False, True]


def test_requests_without_an_answer_are_not_waited_for() -> None:
    """The watch stops waiting for unanswered requests, so that a reader's repeated request is fulfilled soon."""
    progress = begun(silence_seconds=100.0)
    progress.wish()
    now, caught_up, wished_at = 100.0, 104.0, 100.0
    while now < 120.0:
        progress.send(now)
        if now >= caught_up:
            progress.on_response(now)
            if progress.fulfils_wish():
                break
        now = max(now, progress.due_at())
        if now >= wished_at + 1.0:
            wished_at = now
            progress.wish()

    assert now <= caught_up + UNANSWERED_SECONDS + REPEAT_SECONDS[-1]


def test_a_wish_outlives_its_stream() -> None:
    """A reader's progress request is sent at once on the next stream."""
    progress = begun()
    progress.wish()
    progress.send(100.0)
    progress.begin(110.0)
    due = progress.due_at()
    progress.send(110.0)

    assert due <= 110.0
    assert progress.fulfils_wish()


def test_silences_in_a_row_may_last_longer() -> None:
    """The silence time doubles with each consecutive silence, so that a watch can catch up.

    Any response resets the silence time.
    """
    progress = ProgressRequests(1.0)
    lengths = []
    for _ in range(5):
        progress.begin(0.0)
        progress.send(0.0)
        length = progress.due_at()
        lengths.append(length)
        assert progress.is_silent(length)
    progress.on_response(1.0)
    progress.send(1.0)

    assert lengths == [1, 2, 4, 8, SILENCES_MAX]
    assert progress.due_at() == 2.0
