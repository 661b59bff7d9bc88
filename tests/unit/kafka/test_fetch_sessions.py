"""Fetch sessions: reader and broker remember the same state, and the memory for all sessions is bounded."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.kafka.fetch_sessions import (
    FINAL_EPOCH,
    IDLE_SECONDS,
    INITIAL_EPOCH,
    Fetch,
    FetchSessions,
    FetchTopic,
    Offsets,
    SessionRefused,
    Wanted,
)
from fairlead_broker.kafka.protocol.errors import KafkaError

TOPIC = FetchTopic("orders", None)


def sessions(**limits: int) -> FetchSessions:
    """Return sessions with ids from 1."""
    numbers = count(1)
    return FetchSessions(lambda: next(numbers), **limits)


def begin(
    found: FetchSessions,
    session_id: int,
    epoch: int,
    partitions: dict[int, int],
    forgotten: set[int] = frozenset(),  # type: ignore[assignment]
    *,
    owner: str = "user:ann",
    now: float = 0.0,
) -> Fetch:
    """Begin a fetch from partitions of one topic, at the given offsets."""
    wanted = [Wanted(partition, offset, -1, -1, 1) for partition, offset in partitions.items()]
    return found.begin(
        session_id,
        epoch,
        [(TOPIC, wanted)] if wanted else [],
        [(TOPIC, each) for each in forgotten],
        owner=owner,
        now=now,
    )


def positions(fetch: Fetch) -> dict[int, int]:
    """Return the offsets of a fetch by partition."""
    return {each.partition: each.offset for _, wanted in fetch.topics for each in wanted}


CHANGES = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 5), st.integers(0, 9)), st.sets(st.integers(0, 5))), max_size=8
)


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 9), min_size=1), CHANGES)
def test_a_session_reads_what_its_reader_means(
    first: dict[int, int], changes: list[tuple[dict[int, int], set[int]]]
) -> None:
    """Each fetch reads the partitions that were named and not forgotten, at their newest offsets."""
    found, model = sessions(), dict(first)
    session_id = begin(found, 0, INITIAL_EPOCH, first).session_id
    for epoch, (named, forgotten) in enumerate(changes, start=1):
        model = {key: value for key, value in (model | named).items() if key not in forgotten}
        fetch = begin(found, session_id, epoch, named, forgotten)

        assert positions(fetch) == model
        assert fetch.session_id == session_id


def test_an_answer_has_only_news() -> None:
    """A partition is in an answer with records, an error or changed offsets, and in the first answer."""
    found = sessions()
    still, moved = Offsets(9, 0, 9), Offsets(10, 0, 10)
    first = begin(found, 0, INITIAL_EPOCH, {0: 9, 1: 5})
    earlier = [
        first.includes((TOPIC, 0), still, has_news=False),
        first.includes((TOPIC, 1), still, has_news=True),
    ]
    second = begin(found, first.session_id, 1, {})
    later = [
        second.includes((TOPIC, 0), still, has_news=False),
        second.includes((TOPIC, 1), still, has_news=True),
    ]
    third = begin(found, first.session_id, 2, {})

    assert (earlier, later) == ([True, True], [False, True])
    assert third.includes((TOPIC, 0), moved, has_news=False)
    assert not third.includes((TOPIC, 0), moved, has_news=False)


def test_a_partition_with_records_is_read_last_by_the_next_fetch() -> None:
    """Partitions take turns, so that none starves while others fill the answers."""
    found = sessions()
    first = begin(found, 0, INITIAL_EPOCH, {0: 0, 1: 0, 2: 0})
    first.includes((TOPIC, 0), Offsets(1, 0, 1), has_news=True)

    assert list(positions(begin(found, first.session_id, 1, {}))) == [1, 2, 0]


def test_unknown_sessions_and_wrong_epochs_are_refused() -> None:
    """A reader starts a new session if its session is gone, belongs to another principal, or is in another epoch."""
    found = sessions()
    session_id = begin(found, 0, INITIAL_EPOCH, {0: 0}).session_id

    for number, epoch, owner, error in (
        (99, 1, "user:ann", KafkaError.FETCH_SESSION_ID_NOT_FOUND),
        (session_id, 1, "user:bob", KafkaError.FETCH_SESSION_ID_NOT_FOUND),
        (session_id, 2, "user:ann", KafkaError.INVALID_FETCH_SESSION_EPOCH),
    ):
        with pytest.raises(SessionRefused) as refused:
            begin(found, number, epoch, {}, owner=owner)
        assert refused.value.error is error
    assert positions(begin(found, session_id, 1, {})) == {0: 0}
    assert begin(found, session_id, FINAL_EPOCH, {0: 3}).session_id == 0
    assert len(found) == 0


def test_a_new_session_replaces_the_session_of_its_reader() -> None:
    """A full fetch that names a session ends that session, unless the session belongs to another principal."""
    found = sessions()
    own = begin(found, 0, INITIAL_EPOCH, {0: 0}).session_id
    begin(found, own, INITIAL_EPOCH, {0: 0}, owner="user:bob")
    assert len(found) == 2
    begin(found, own, INITIAL_EPOCH, {0: 0})
    assert len(found) == 2


def test_sessions_and_their_partitions_are_bounded() -> None:
    """Beyond the limits, a reader gets no session until another session has been idle for long enough."""
    found = sessions(sessions_max=2, partitions_max=3)
    first = begin(found, 0, INITIAL_EPOCH, {0: 0, 1: 0}).session_id
    too_many = begin(found, 0, INITIAL_EPOCH, {0: 0, 1: 0})
    second = begin(found, 0, INITIAL_EPOCH, {0: 0})
    third = begin(found, 0, INITIAL_EPOCH, {0: 0})
    later = begin(found, 0, INITIAL_EPOCH, {0: 0, 1: 0}, now=IDLE_SECONDS)

    assert positions(too_many) == {0: 0, 1: 0}
    assert (too_many.session_id, third.session_id) == (0, 0)
    assert second.session_id
    assert later.session_id
    with pytest.raises(SessionRefused):
        begin(found, first, 1, {})
    with pytest.raises(SessionRefused):
        begin(found, later.session_id, 1, {2: 0})
    assert len(found) == 1
