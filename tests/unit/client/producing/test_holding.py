"""A producer over a limit sends nothing for the reported time, and then one request at a time (rule Q7)."""

from __future__ import annotations

import pytest  # noqa: TC002

from fairlead.producing.holding import LOG_SECONDS, PACED_SECONDS, Holding, ProducerMetrics


def test_requests_wait_and_are_then_sent_one_at_a_time() -> None:
    """Requests to a broker are delayed by the longest time that the broker has reported.

    Afterwards, requests are sent one at a time for a while; requests to other brokers are not affected.
    """
    holding = Holding()
    holding.hold("a", 5, 100)
    holding.hold("a", 2, 101)
    holding.hold("b", 0, 100)

    assert (holding.until("a", 101), holding.until("b", 101)) == (105, 101)
    assert [holding.in_flight_max("a", 5, now) for now in (101, 106, 105 + PACED_SECONDS)] == [1, 1, 5]
    assert holding.in_flight_max("b", 5, 101) == 5
    assert holding.until("a", 106 + PACED_SECONDS) <= 106 + PACED_SECONDS
    assert holding.until("a", 300) == 300


def test_waits_are_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Every requested wait is counted; seconds of overlapping waits for one broker are counted once."""
    holding = Holding()
    for broker, seconds, now in (("a", 5, 100), ("a", 2, 101), ("a", 6, 102), ("b", 0, 102), ("b", 1, 103)):
        holding.hold(broker, seconds, now)
    logged = len(caplog.records)
    holding.hold("a", 1, 100 + LOG_SECONDS)

    assert holding.metrics == ProducerMetrics(waits=5, waited_seconds=8 + 1 + 1)
    assert (logged, len(caplog.records)) == (1, 2)
