"""What the leader must know of another broker, taken from its registration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration, BrokerState


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker as the leader's mirror shows it."""

    epoch: BrokerEpoch
    """Create revision of its key."""
    revision: Revision
    """Mod revision of its key."""
    joins: bool
    """Whether it may come into an isr: it is running or draining, not stopping."""
    directories: tuple[str, ...]
    """Ids of its healthy directories."""


def registered_brokers(
    brokers: Mapping[BrokerId, Versioned[BrokerRegistration]],
) -> dict[BrokerId, RegisteredBroker]:
    """Take what leaders need from the mirrored registrations."""
    return {
        broker: RegisteredBroker(
            BrokerEpoch(each.create_revision),
            each.mod_revision,
            each.value.state in (BrokerState.RUNNING, BrokerState.DRAINING),
            tuple(directory.id for directory in each.value.directories),
        )
        for broker, each in brokers.items()
    }
