"""The number of produce calls that are admitted while the event loop is late."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.server.http.body import CALLS_MIN, LATE_SECONDS, CallLimit


def test_limit_falls_with_what_is_under_way() -> None:
    """A late loop lowers the limit to a fraction of the calls in progress, even if the limit was not reached."""
    limit = CallLimit(1000)
    for _ in range(200):
        limit.begin("ann")
    limit.observe_lag(LATE_SECONDS * 2)

    assert limit.limit == 140
    assert limit.full
    assert not limit.begin("ann")


def test_limit_has_a_floor_and_comes_back() -> None:
    """The limit stays above a floor even if the loop is late, and rises to its maximum when the loop is on time."""
    limit = CallLimit(1000)
    for _ in range(50):
        limit.observe_lag(1.0)
    lowest = limit.limit
    looks = 0
    while limit.limit < 1000:
        limit.observe_lag(0.0)
        looks += 1

    assert lowest == CALLS_MIN
    assert looks < 100


def test_small_limits_are_kept() -> None:
    """A configured limit that is below the floor is not raised to the floor."""
    limit = CallLimit(2)
    limit.observe_lag(1.0)
    limit.begin("ann")
    limit.begin("ann")

    assert limit.limit == 2
    assert limit.full


def test_callers_with_few_calls_are_admitted_at_the_limit() -> None:
    """At the limit, only callers below an equal share are admitted, up to a tenth above the limit (rule Q9)."""
    limit = CallLimit(100)
    while limit.begin("busy"):
        pass
    alone = limit.calls
    admitted = [limit.begin(f"quiet {number % 4}") for number in range(12)]
    again = limit.begin("busy")
    for _ in range(60):
        limit.end("busy")
    free = limit.admits("busy")

    assert alone == 100
    assert admitted == [True] * 10 + [False] * 2
    assert (again, free, limit.calls) == (False, True, 50)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_counts_of_callers_add_up(events: list[tuple[str, bool]]) -> None:
    """At most a tenth more calls than the limit are admitted, and only for callers with less than an equal share."""
    limit, own, excess = CallLimit(20), Counter[str](), Counter[str]()
    for caller, begins in events:
        if begins:
            callers = len(+own) + (not own[caller])
            beyond = limit.calls >= 20
            may = not beyond or (excess.total() < 2 and own[caller] < 20 / callers)
            assert limit.begin(caller) is may
            own[caller] += may
            excess[caller] += may and beyond
        elif own[caller]:
            limit.end(caller)
            own[caller] -= 1
            excess[caller] = max(0, excess[caller] - 1)
        assert limit.calls == own.total() <= 22


def test_calls_that_go_on_take_no_room_from_others() -> None:
    """Calls that continue after a wait may exceed the limit, and a caller with few calls is still admitted."""
    limit = CallLimit(8)
    for _ in range(30):
        limit.go_on("busy")
    admitted = limit.begin("calm"), limit.begin("calm"), limit.begin("busy")
    limit.end("calm")

    assert admitted == (True, False, False)
    assert limit.begin("calm")
