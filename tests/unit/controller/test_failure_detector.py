"""Decisions about ended processes: which connection outcomes end an incarnation, and how often."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.controller.failure_detector import (
    ENDED_MAX,
    ENDED_SECONDS,
    FIRST_PROBE_SECONDS,
    PROBE_SECONDS_MAX,
    PROBE_SECONDS_MIN,
    REFUSALS_MIN,
    SETTLED_SECONDS,
    SPARED_SECONDS,
    SPARED_SECONDS_MAX,
    FailureDetector,
)

BROKER = BrokerId(2)


def detector(*, connected: bool = True) -> FailureDetector:
    """Return a detector that watches one incarnation and has already had a connection to it."""
    made = FailureDetector()
    made.registered(BROKER, BrokerEpoch(10), "process a", 0.0)
    if connected:
        made.connected(BROKER, 0.0)
        made.closed(BROKER, SETTLED_SECONDS)
    return made


def refuse(made: FailureDetector, times: int = REFUSALS_MIN) -> None:
    """Record refused connections."""
    for _ in range(times):
        made.refused(BROKER)


def test_two_refusals_after_a_connection_show_the_end_of_a_process() -> None:
    """A process has ended when its port refuses two connections in a row after it has accepted one."""
    made = detector()
    seen = []
    for _ in range(REFUSALS_MIN):
        seen.append(made.has_ended(BROKER, 2.0))
        made.refused(BROKER)

    assert seen == [False] * REFUSALS_MIN
    assert made.has_ended(BROKER, 2.0)


def test_a_process_that_has_never_accepted_a_connection_is_never_ended() -> None:
    """A broker registers before it listens, so refusals before the first connection prove nothing."""
    made = detector(connected=False)
    refuse(made, 10)

    assert not made.has_ended(BROKER, 1000.0)


def test_other_outcomes_between_two_refusals_start_again() -> None:
    """A missing answer, or an accepted connection between two refusals, does not prove that the process has ended."""
    silent, accepted = detector(), detector()
    for made in (silent, accepted):
        made.refused(BROKER)
    silent.unreachable(BROKER)
    accepted.connected(BROKER, 2.0)
    for made in (silent, accepted):
        made.refused(BROKER)

    assert not silent.has_ended(BROKER, 3.0)
    assert not accepted.has_ended(BROKER, 3.0)


def test_a_survivor_is_spared_for_longer_each_time() -> None:
    """A process that registers again has survived, and is spared for a time that doubles up to a limit."""
    made, spared = detector(), []
    for survivals in range(1, 10):
        made.registered(BROKER, BrokerEpoch(10 + survivals), "process a", 0.0)
        made.registered(BROKER, BrokerEpoch(10 + survivals), "process a", 500.0)
        made.connected(BROKER, 0.0)
        refuse(made)
        spared.append(next(after for after in range(100_000) if made.has_ended(BROKER, float(after))))

    assert spared[0] == SPARED_SECONDS
    assert all(after == min(2 * before, SPARED_SECONDS_MAX) for before, after in pairwise(spared))


def test_a_new_process_is_not_spared() -> None:
    """A restarted broker is a new process, whose end is detected immediately."""
    made = detector()
    made.registered(BROKER, BrokerEpoch(11), "process b", 5.0)
    made.connected(BROKER, 5.0)
    refuse(made)

    assert made.has_ended(BROKER, 6.0)


def test_a_settled_connection_is_replaced_at_once() -> None:
    """The first attempt after a settled connection is made at once; later attempts wait longer, up to a limit."""
    made = detector()
    made.connected(BROKER, 10.0)
    at_once = made.closed(BROKER, 10.0 + SETTLED_SECONDS)
    pauses = [made.refused(BROKER) for _ in range(12)]
    made.connected(BROKER, 50.0)

    assert at_once == 0
    assert pauses[0] == PROBE_SECONDS_MIN
    assert all(after == min(2 * before, PROBE_SECONDS_MAX) for before, after in pairwise(pauses))
    assert made.closed(BROKER, 50.1) == PROBE_SECONDS_MAX


def test_a_broker_killed_right_after_its_start_is_ended_as_soon_as_any_other() -> None:
    """Attempts before the first connection are frequent, and do not delay the attempts after the broker's end."""
    made = detector(connected=False)
    starting = [made.refused(BROKER) for _ in range(6)] + [made.unreachable(BROKER) for _ in range(6)]
    made.connected(BROKER, 10.0)
    ended = [made.closed(BROKER, 10.1), made.refused(BROKER), made.refused(BROKER)]

    assert starting[:6] == [FIRST_PROBE_SECONDS] * 6
    assert starting[-1] > PROBE_SECONDS_MIN
    assert ended == [PROBE_SECONDS_MIN, 2 * PROBE_SECONDS_MIN, 4 * PROBE_SECONDS_MIN]
    assert made.has_ended(BROKER, 10.5)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=200))
def test_the_budget_bounds_the_number_of_ended_incarnations(gaps: list[float]) -> None:
    """In any period, a broker ends at most a burst of incarnations, and one more for each further interval."""
    made, now, ended = FailureDetector(), 100.0, []
    for gap in gaps:
        now += gap
        if made.spend(now):
            ended.append(now)

    assert len(ended) >= min(ENDED_MAX, len(gaps))
    for first, begun in enumerate(ended):
        for last, until in enumerate(ended[first:], first):
            assert last - first + 1 <= ENDED_MAX + (until - begun) / ENDED_SECONDS + 1e-6
