"""Vacancies of partitions with a write quorum, and the appointments that fill them (quorum Q1, Q7 and Q8).

A record without a leader in a raised leader epoch is a vacancy. A replica that answers in the epoch of a vacancy
promises to take no further part in older epochs, so the answers of R = N - W + 1 of the N voters show which records may
have been committed. `controlling` asks the replicas and writes the records. All functions are pure: the next step
follows from the record, the registrations and the answers, so that a new controller continues where the previous
controller stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from fairlead_broker.controller.election import (
    Brokers,
    broker_epoch,
    is_live,
    kept_everything,
    registered_directory,
    takes_part,
)
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.quorum import members, promises_needed, vacated
from fairlead_broker.registry.records import InSync, PartitionRecord, Replica


@dataclass(frozen=True, slots=True)
class Promise:
    """Answer of a replica in the epoch of a vacancy (quorum Q6)."""

    broker_epoch: BrokerEpoch
    """Incarnation of the broker that answers."""
    directory: str
    generation: int
    leader_epoch: LeaderEpoch
    """Epoch of the vacancy; answers for another epoch are void."""
    end: LogEnd
    log_start: Offset


def without_dead_leader(record: PartitionRecord, brokers: Brokers) -> PartitionRecord | None:
    """Return the vacancy that replaces a leader whose incarnation has ended, or None if none is needed."""
    if record.leader is None or is_live(record.leader, brokers):
        return None
    return vacated(record)


def counted_promises(
    key: PartitionKey, record: PartitionRecord, promises: Mapping[BrokerId, Promise], brokers: Brokers
) -> dict[BrokerId, Promise]:
    """Return the answers that count: answers of voters that have kept every record since their entry (quorum Q7)."""
    assert record.quorum is not None, "only a partition with a quorum has vacancies"
    places = {replica.broker: replica for replica in record.replicas}
    alone = len(record.replicas) == 1
    counted = {}
    for voter in record.quorum.voters:
        promise, registered = promises.get(voter.broker), brokers.get(voter.broker)
        if promise is None or registered is None or promise.leader_epoch != record.leader_epoch:
            continue
        place = places[voter.broker]
        directory = registered_directory(registered.value, place.directory)
        if (
            directory is not None
            and promise.broker_epoch == broker_epoch(registered)
            and _is_place(promise, place)
            and (is_live(voter, brokers) or kept_everything(voter, record, registered, directory, alone))
        ):
            counted[voter.broker] = promise
    return counted


def _is_place(promise: Promise, place: Replica) -> bool:
    """Return whether a replica answers with the directory and generation that the record assigns to it."""
    return (promise.directory, promise.generation) == (place.directory, place.generation)


def missing_promises(
    key: PartitionKey, record: PartitionRecord, promises: Mapping[BrokerId, Promise], brokers: Brokers
) -> tuple[BrokerId, ...]:
    """Return the voters whose answers do not count yet, or an empty tuple if enough answers count."""
    assert record.quorum is not None, "only a partition with a quorum has vacancies"
    counted = counted_promises(key, record, promises, brokers)
    if len(counted) >= promises_needed(record):
        return ()
    return tuple(voter.broker for voter in record.quorum.voters if voter.broker not in counted)


def appointed(
    key: PartitionKey,
    record: PartitionRecord,
    promises: Mapping[BrokerId, Promise],
    brokers: Brokers,
    avoiding: Collection[BrokerId] = (),
) -> PartitionRecord | None:
    """Return the record that fills a vacancy, or None while too few answers count (quorum Q8).

    The appointed replica must have a log that is not behind the logs of R answers, including its own. A replica in
    `avoiding` is appointed only if there is no other candidate.
    """
    assert record.leader is None, "only a vacancy is filled"
    if record.restored:
        return _of_restored(key, record, promises, brokers)
    counted, needed = counted_promises(key, record, promises, brokers), promises_needed(record)
    if len(counted) < needed:
        return None
    able = [
        replica.broker
        for replica in record.replicas
        if replica.broker in counted
        and takes_part(key, brokers[replica.broker].value)
        and _answers_not_ahead(counted[replica.broker].end, counted) >= needed
    ]
    wanted = [broker for broker in able if broker not in avoiding] or able
    return _led_by(record, wanted[0], counted) if wanted else None


def _answers_not_ahead(end: LogEnd, counted: Mapping[BrokerId, Promise]) -> int:
    """Return the number of answers whose last epoch and end are not ahead of a log."""
    return sum(each.end <= end for each in counted.values())


def _led_by(
    record: PartitionRecord, broker: BrokerId, counted: Mapping[BrokerId, Promise]
) -> PartitionRecord:
    """Return the record with a leader and with updated entries for all voters whose answers counted."""
    quorum = record.quorum
    assert quorum is not None, "only a partition with a quorum has vacancies"
    voters = tuple(
        msgspec.structs.replace(voter, broker_epoch=counted[voter.broker].broker_epoch)
        if voter.broker in counted
        else voter
        for voter in quorum.voters
    )
    return msgspec.structs.replace(
        record,
        leader=next(voter for voter in voters if voter.broker == broker),
        quorum=msgspec.structs.replace(
            quorum,
            voters=voters,
            log_start=max(quorum.log_start, *(each.log_start for each in counted.values())),
        ),
    )


def _of_restored(
    key: PartitionKey, record: PartitionRecord, promises: Mapping[BrokerId, Promise], brokers: Brokers
) -> PartitionRecord | None:
    """Return the record of a restored store, led by the member with the greatest log; all members must have answered.

    The voters of a restored record may be outdated, so the other replicas return as voters later (quorum Q9).
    """
    answered = {
        broker: promise
        for broker, promise in promises.items()
        if promise.leader_epoch == record.leader_epoch
        and broker in brokers
        and promise.broker_epoch == broker_epoch(brokers[broker])
    }
    if not answered.keys() >= set(members(record)):
        return None
    able = [broker for broker in members(record) if takes_part(key, brokers[broker].value)]
    if not able:
        return None
    chosen = max(able, key=lambda broker: answered[broker].end)
    epoch = max(record.leader_epoch, *(each.end.epoch for each in answered.values()))
    return sole_voter(record, chosen, answered[chosen].broker_epoch, LeaderEpoch(epoch + 1))


def sole_voter(
    record: PartitionRecord, broker: BrokerId, incarnation: BrokerEpoch, leader_epoch: LeaderEpoch
) -> PartitionRecord:
    """Return the record led by a replica that is the only voter, in an epoch above all known epochs.

    The number of members does not change, so W voters are still needed for every commit.
    """
    quorum = record.quorum
    assert quorum is not None, "only a partition with a quorum has voters"
    leader = InSync(broker=broker, broker_epoch=incarnation)
    return msgspec.structs.replace(
        record,
        leader=leader,
        leader_epoch=leader_epoch,
        quorum=msgspec.structs.replace(quorum, voters=(leader,)),
        restored=False,
    )
