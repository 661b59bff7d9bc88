"""Registrations of other brokers, as seen by leaders."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import BrokerId
from fairlead_broker.registry.records import BrokerState
from fairlead_broker.replication.registered_broker import registered_brokers
from partition_kit import DRAINING, RUNNING, STOPPING, registered


@pytest.mark.parametrize(("state", "joins"), [(RUNNING, True), (DRAINING, True), (STOPPING, False)])
def test_a_broker_that_stops_comes_into_no_isr(state: BrokerState, joins: bool) -> None:
    """A stopping broker may not join an ISR, but a draining broker may."""
    assert registered_brokers({BrokerId(2): registered(2, 12, state)})[BrokerId(2)].joins is joins


def test_life_revision_and_healthy_directories_are_taken_over() -> None:
    """The incarnation is the create revision of the registration, and a join is guarded by its mod revision."""
    [(broker, taken)] = registered_brokers({BrokerId(2): registered(2, 12, directories=("x", "y"))}).items()

    assert broker == 2
    assert (taken.epoch, taken.revision, taken.directories) == (12, 12, ("x", "y"))


def test_a_broker_without_a_disk_has_no_directory() -> None:
    """A broker without a healthy disk has no directory, so it does not join."""
    assert registered_brokers({BrokerId(2): registered(2, 12, directories=())})[BrokerId(2)].directories == ()
