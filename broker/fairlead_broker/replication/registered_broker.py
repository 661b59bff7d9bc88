"""Facts that a partition leader needs from the registration of another broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration, BrokerState


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A registered broker, as seen in the leader's mirror."""

    epoch: BrokerEpoch
    """Create revision of the broker's key."""
    revision: Revision
    """Mod revision of the broker's key."""
    joins: bool
    """Whether the broker may join an isr: the broker is running or draining, not stopping."""
    directories: tuple[str, ...]
    """Ids of the broker's healthy directories."""


def registered_brokers(
    brokers: Mapping[BrokerId, Versioned[BrokerRegistration]],
) -> dict[BrokerId, RegisteredBroker]:
    """Return the facts that leaders need, from the mirrored registrations."""
    return {
        broker: RegisteredBroker(
            BrokerEpoch(each.create_revision),
            each.mod_revision,
            each.value.state in (BrokerState.RUNNING, BrokerState.DRAINING),
            tuple(directory.id for directory in each.value.directories),
        )
        for broker, each in brokers.items()
    }
