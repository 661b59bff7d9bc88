"""A bucket admits the amount that it refills, and a request of any size when it is not in debt (rule Q5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.quota_limits import Limit
from fairlead_broker.quotas.bucket import ACTIVE_SECONDS, WAIT_SECONDS_MAX, Bucket, UnderWay, taken_reports
from fairlead_broker.quotas.limits import UseKey

KEY = UseKey("*", Limit.PRODUCE_BYTES, "user:a")
STEPS = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 500)), max_size=40)


@given(STEPS)
def test_what_is_let_in_stays_within_the_rate(steps: list[tuple[float, float]]) -> None:
    """Over any time, a bucket admits at most its rate, plus one second of its rate, plus one request."""
    bucket, now, let_in, largest = Bucket(KEY, 100.0, 100.0, 0.0), 0.0, 0.0, 0.0
    for pause, amount in steps:
        now += pause
        if bucket.wait_seconds(now) == 0:
            bucket.charge(amount, now)
            let_in += amount
            largest = max(largest, amount)

        assert let_in <= 100.0 * (now + 1) + largest + 1e-6
    assert abs(bucket.take_used() - let_in) < 1e-6
    assert bucket.take_used() == 0


@given(st.floats(101, 2500), st.floats(1, 1000))
def test_the_returned_time_is_exact(amount: float, share: float) -> None:
    """A bucket admits the next request exactly after the returned time, which is at most the maximum."""
    bucket = Bucket(KEY, 100.0, 100.0, 0.0)
    bucket.charge(amount, 0.0)
    bucket.set_share(100.0, share, 0.0)
    seconds = bucket.wait_seconds(0.0)

    assert 0 < seconds <= WAIT_SECONDS_MAX
    if seconds < WAIT_SECONDS_MAX:
        assert bucket.wait_seconds(seconds * 0.99) > 0
        assert bucket.wait_seconds(seconds * 1.01) == 0


def test_requests_under_way_are_shared_equally() -> None:
    """Each broker may admit an equal share of the concurrent requests, rounded up."""
    counter = UnderWay(KEY, 10, 3)

    assert counter.share == 4
    counter.set_limit(10, 0)
    assert counter.share == 10


def test_a_limit_is_reported_for_a_while_after_its_last_use() -> None:
    """A report takes the amount since the previous one, and an unused limit is reported until it counts as inactive."""
    used, unused = Bucket(KEY, 100.0, 50.0, 0.0), Bucket(KEY, 10.0, 5.0, 0.0)
    used.charge(7.0, 1.0)
    first = taken_reports([used, unused], ACTIVE_SECONDS)
    second = taken_reports([used, unused], ACTIVE_SECONDS)

    assert first == [(KEY, 100.0, 7.0)]
    assert second == [(KEY, 100.0, 0.0)]
    assert taken_reports([used, unused], ACTIVE_SECONDS + 1.0) == []
