"""The heartbeat interval of the members of a coordinator."""

from __future__ import annotations

from fairlead_broker.runtime.groups.coordinated_group import HeartbeatPace


def test_all_members_together_come_a_bounded_number_of_times_a_second() -> None:
    """The heartbeats of all members together stay below a rate, regardless of the number of members."""
    pace = HeartbeatPace()
    few = pace.interval_ms
    pace.count(4_000)
    many = pace.interval_ms
    pace.count(-4_000)

    assert (few, many, pace.interval_ms) == (5_000, 20_000, 5_000)
