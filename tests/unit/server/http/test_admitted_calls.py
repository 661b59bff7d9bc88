"""The number of produce calls that are admitted while the event loop is late."""

from fairlead_broker.server.http.body import CALLS_MIN, LATE_SECONDS, CallLimit


def test_limit_falls_with_what_is_under_way() -> None:
    """A late loop lowers the limit to a fraction of the running calls, even if the limit was not reached."""
    limit = CallLimit(1000)
    for _ in range(200):
        limit.begin()
    limit.observe_lag(LATE_SECONDS * 2)

    assert limit.limit == 140
    assert limit.full
    assert not limit.begin()


def test_limit_has_a_floor_and_comes_back() -> None:
    """The limit has a floor however late the loop is, and rises to its maximum when the loop is on time."""
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
    """A limit below the floor is not raised."""
    limit = CallLimit(2)
    limit.observe_lag(1.0)
    limit.begin()
    limit.begin()

    assert limit.limit == 2
    assert limit.full
