"""The components of a broker that answer calls: the controller, topics, configuration, produce, fetch, groups."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fairlead_api.identifiers import ProducerId, TopicId
from fairlead_broker.controlling.configs import ConfigAdmin
from fairlead_broker.controlling.controllership import Controllership
from fairlead_broker.controlling.linking.link_admin import LINK_LEVEL
from fairlead_broker.controlling.operations import ClusterOperations
from fairlead_broker.controlling.topics import TopicAdmin
from fairlead_broker.coordination.group_store import GroupStore
from fairlead_broker.coordination.producer_registry import ProducerRegistry
from fairlead_broker.coordination.transaction_store import TransactionStore
from fairlead_broker.links.producer_ranges import first_producer_id
from fairlead_broker.runtime.groups.groups import Groups
from fairlead_broker.runtime.groups.lag_meters import GroupLagMeters
from fairlead_broker.runtime.groups.meters import GroupMeters
from fairlead_broker.runtime.hosting.damage import DamageAcceptance
from fairlead_broker.runtime.leading.fetching import Fetching
from fairlead_broker.runtime.leading.producing import Producing
from fairlead_broker.runtime.leading.records_deletion import RecordsDeletion
from fairlead_broker.runtime.lifecycle.cluster_entry import Entry
from fairlead_broker.runtime.meters import VacancyMeters, election_counter, watch_controller
from fairlead_broker.runtime.peer_serving.promises import AskForPromises
from fairlead_broker.runtime.peer_serving.survey import Survey
from fairlead_broker.runtime.transactions.ends import TransactionEnds
from fairlead_broker.runtime.transactions.transactions import TRANSACTION_LEVEL, Transactions
from fairlead_broker.wiring.engine import Engine
from fairlead_broker.wiring.replicas import ReplicaParts


@dataclass(frozen=True, slots=True)
class CallParts:
    """Components that answer calls from clients and operators."""

    controllership: Controllership
    operations: ClusterOperations
    topic_admin: TopicAdmin
    config_admin: ConfigAdmin
    producing: Producing
    fetching: Fetching
    producer_registry: ProducerRegistry
    transactions: Transactions
    groups: Groups
    group_lag: GroupLagMeters
    records_deletion: RecordsDeletion
    damage_acceptance: DamageAcceptance


def build_calls(engine: Engine, entry: Entry, parts: ReplicaParts) -> CallParts:
    """Build the components that answer calls."""
    limits, clock, metadata = engine.settings.limits, engine.clock, entry.mirror.metadata

    def new_start_index() -> int:
        """Return a random index for the first broker of a topic, so that topics with one partition are also spread."""
        return zlib.crc32(engine.new_id().encode())

    controllership = _controllership(engine, entry, parts, new_start_index)
    groups = build_groups(engine, entry, parts)
    registry = ProducerRegistry(entry.coordination, metadata.keys, clock, partial(first_id_of, entry))
    return CallParts(
        controllership=controllership,
        operations=ClusterOperations(entry.coordination, entry.mirror, controllership),
        topic_admin=TopicAdmin(
            entry.coordination,
            entry.mirror,
            lambda: controllership.term,
            clock,
            controllership.load,
            new_topic_id=lambda: TopicId(engine.new_id()),
            new_start_index=new_start_index,
        ),
        config_admin=ConfigAdmin(entry.coordination, entry.mirror),
        producing=Producing(
            clock,
            engine.validation,
            engine.produce_budget,
            engine.meters,
            on_loop_bytes_max=limits.validation_on_loop_bytes_max,
            timeout_seconds_max=limits.produce_timeout_seconds_max,
            takes_transactions=lambda: feature_level_of(entry) >= TRANSACTION_LEVEL,
        ),
        fetching=Fetching(
            parts.replicas.find,
            engine.disk,
            engine.meters,
            bytes_max=limits.fetch_bytes_max,
            wait_seconds_max=limits.fetch_wait_seconds_max,
            polls_max=limits.long_polls_max,
        ),
        producer_registry=registry,
        transactions=build_transactions(engine, entry, parts, registry),
        groups=groups,
        group_lag=GroupLagMeters(groups, parts.peers.positions, metadata, engine.telemetry, clock),
        records_deletion=RecordsDeletion(engine.disk, clock, parts.disk.health.fail, engine.meters.deleted),
        damage_acceptance=DamageAcceptance(engine.disk, parts.disk.health.fail, engine.log),
    )


def _controllership(
    engine: Engine, entry: Entry, parts: ReplicaParts, new_start_index: Callable[[], int]
) -> Controllership:
    """Build the controller part of the broker, and export its metrics."""
    vacancies = VacancyMeters(engine.telemetry)
    controllership = Controllership(
        entry.coordination,
        entry.mirror,
        lambda: entry.membership,
        engine.clock,
        survey=Survey(parts.peers.peer_side.peers, parts.replicas.log_of),
        ask=AskForPromises(parts.peers.peer_side.peers, parts.peers.promises),
        near=parts.peers.voters.near,
        new_start_index=new_start_index,
        count_elections=election_counter(engine.telemetry),
        observe_vacancy=vacancies.observe,
        show_vacancies=vacancies.show,
    )
    watch_controller(engine.telemetry, controllership)
    return controllership


def feature_level_of(entry: Entry) -> int:
    """Return the feature level of the cluster, as last seen."""
    found = entry.mirror.metadata.cluster
    return entry.cluster.feature_level if found is None else found.value.feature_level


def first_id_of(entry: Entry) -> ProducerId:
    """Return the first producer id of the cluster's range; 0 below the feature level of links."""
    return (
        first_producer_id(entry.cluster.cluster_id)
        if feature_level_of(entry) >= LINK_LEVEL
        else ProducerId(0)
    )


def build_transactions(
    engine: Engine, entry: Entry, parts: ReplicaParts, registry: ProducerRegistry
) -> Transactions:
    """Build the component that runs the transactions of producers."""
    peers, metadata, clock = parts.peers.peer_side.peers, entry.mirror.metadata, engine.clock
    spawn = engine.supervisor.spawn
    writes = parts.disk.decision_writes
    looks, meters = parts.disk.looks, parts.disk.transaction_meters
    ends = TransactionEnds(parts.replicas.find, metadata, peers, clock, spawn, meters.ended)
    meters.watch(
        lambda: looks.open_count,
        lambda: looks.oldest_seconds,
        lambda: looks.unstable_records,
        lambda: ends.unconfirmed,
    )
    return Transactions(
        TransactionStore(entry.coordination, entry.keys),
        writes,
        ends,
        looks,
        meters,
        registry.new_id,
        metadata,
        peers,
        clock,
        spawn,
    )


def build_groups(engine: Engine, entry: Entry, parts: ReplicaParts) -> Groups:
    """Build the groups of a broker, and notify them of changes to its mirror and its incarnation."""
    meters = GroupMeters(engine.telemetry)
    groups = Groups(
        GroupStore(entry.coordination, entry.keys),
        TransactionStore(entry.coordination, entry.keys),
        entry.mirror,
        entry.incarnation,
        engine.clock,
        parts.peers.positions,
        meters,
        engine.supervisor.spawn,
        engine.log,
    )
    meters.watch(lambda: len(groups), lambda: sum(each.group.member_count for each in groups))
    entry.mirror.subscribe(groups.changed)
    entry.incarnation.subscribe(groups.incarnation_changed)
    return groups
