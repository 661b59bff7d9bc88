"""How often members come to a broker that coordinates many."""

from __future__ import annotations

from fairlead_broker.runtime.groups.coordinated_group import HeartbeatPace


def test_all_members_together_come_a_bounded_number_of_times_a_second() -> None:
    """They come and go, and the pace with them."""
    pace = HeartbeatPace()
    few = pace.interval_ms
    pace.count(4_000)
    many = pace.interval_ms
    pace.count(-4_000)

    assert (few, many, pace.interval_ms) == (5_000, 20_000, 5_000)
