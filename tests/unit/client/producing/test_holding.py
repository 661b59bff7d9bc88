"""A producer over a limit sends nothing for the reported time, and then one request at a time (rule Q7)."""

from __future__ import annotations

from fairlead.producing.holding import PACED_SECONDS, Holding


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
