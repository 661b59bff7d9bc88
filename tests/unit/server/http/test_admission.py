"""How many produce calls are let in when the loop is late."""

from fairlead_broker.server.http.body import CALLS_MIN, LATE_SECONDS, CallLimit


def test_limit_falls_with_what_is_under_way() -> None:
    """A late loop lowers the limit below the calls that made it late, not below a limit nobody had reached."""
    limit = CallLimit(1000)
    for _ in range(200):
        limit.begin()
    limit.observe_lag(LATE_SECONDS * 2)

    assert limit.limit == 140
    assert limit.full
    assert not limit.begin()


def test_limit_has_a_floor_and_comes_back() -> None:
    """However late the loop is, some calls are let in; once it is on time the limit grows to the full one."""
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
    """A limit set below the floor is not raised by it."""
    limit = CallLimit(2)
    limit.observe_lag(1.0)
    limit.begin()
    limit.begin()

    assert limit.limit == 2
    assert limit.full
