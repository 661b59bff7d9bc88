"""Brokers as the mirror shows them, and partition records of these brokers, for tests of the controller."""

from __future__ import annotations

from typing import Any

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex, Revision, TopicId
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    Directory,
    DurabilityState,
    InSync,
    PartitionRecord,
    QuarantinedReplica,
    Replica,
)

TOPIC_ID = TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b")
KEY = PartitionKey(TOPIC_ID, PartitionIndex(0))
RUNNING, DRAINING, STOPPING = BrokerState.RUNNING, BrokerState.DRAINING, BrokerState.STOPPING
R1, R2, R3, R4 = ((n, RUNNING) for n in (1, 2, 3, 4))


def registered(
    broker: int,
    epoch: int,
    state: BrokerState = RUNNING,
    *,
    last_broker_epoch: int = 0,
    quarantined: bool = False,
    directories: tuple[str, ...] | None = None,
    rack: str | None = None,
) -> Versioned[BrokerRegistration]:
    """Return the registration of a broker, by default with one directory that is named after the broker."""
    distrusted = (QuarantinedReplica(topic_id=TOPIC_ID, partition=PartitionIndex(0)),)
    return Versioned(
        BrokerRegistration(
            state=state,
            addresses=Addresses(data="h:1", peer="h:2", ops="h:3"),
            rack=rack,
            release="0.1.0",
            peer_secret_hash="00",
            directories=tuple(
                Directory(id=name, last_broker_epoch=BrokerEpoch(last_broker_epoch))
                for name in (directories if directories is not None else (f"d{broker}",))
            ),
            quarantined=distrusted if quarantined else (),
        ),
        Revision(epoch),
        Revision(epoch),
    )


def brokers(*each: tuple[int, BrokerState]) -> dict[BrokerId, Versioned[BrokerRegistration]]:
    """Return registrations of brokers, broker n in epoch 10 + n."""
    return {BrokerId(broker): registered(broker, 10 + broker, state) for broker, state in each}


def entries(*ids: int) -> tuple[InSync, ...]:
    """Return incarnations of brokers, broker n in epoch 10 + n."""
    return tuple(InSync(broker=BrokerId(n), broker_epoch=BrokerEpoch(10 + n)) for n in ids)


def record(leader: int | None, isr: str, elr: str = "", **about: Any) -> PartitionRecord:
    """Return a partition record of brokers 1 to 3; isr, elr and replicas are digits."""
    replicas = about.pop("replicas", "123")
    return PartitionRecord(
        leader=None if leader is None else entries(leader)[0],
        leader_epoch=LeaderEpoch(7),
        replicas=tuple(Replica(broker=BrokerId(int(n)), directory=f"d{n}") for n in replicas),
        isr=entries(*map(int, isr)),
        elr=entries(*map(int, elr)),
        min_isr=about.pop("min_isr", 2),
        durability=about.pop("durability", DurabilityState.SYNCED),
        **about,
    )


def short(made: PartitionRecord | None) -> tuple[int | None, int, str, str] | None:
    """Return leader, leader epoch, ISR and ELR in the notation of the tests' tables of cases."""
    if made is None:
        return None
    isr, elr = ("".join(str(entry.broker) for entry in each) for each in (made.isr, made.elr))
    return (made.leader.broker if made.leader else None, made.leader_epoch, isr, elr)


def kept_by(made: PartitionRecord | None) -> str | None:
    """Return the brokers of the replicas as digits; None for no record."""
    return None if made is None else "".join(str(replica.broker) for replica in made.replicas)
