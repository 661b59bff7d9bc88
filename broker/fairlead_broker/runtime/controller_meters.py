"""The controller's metrics, read from the controllership when they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from fairlead_broker.controlling.controllership import Controllership
from fairlead_broker.telemetry import Telemetry

KINDS = ("clean", "unclean")


def election_counter(telemetry: Telemetry) -> Callable[[str, int], None]:
    """Return what counts elections by kind; both kinds are there from the start."""
    counter = telemetry.metric("fairlead_leader_elections_total")
    children = {kind: counter.labels(kind) for kind in KINDS}
    return lambda kind, count: children[kind].inc(count)


def watch_controller(telemetry: Telemetry, controllership: Controllership) -> None:
    """Have the gauges follow."""
    active = telemetry.metric("fairlead_controller_active")
    active.set_function(lambda: controllership.term is not None)
    telemetry.metric("fairlead_leaderless_partitions").set_function(lambda: controllership.leaderless)
    telemetry.metric("fairlead_reassigning_partitions").set_function(lambda: controllership.moving)
