"""Replicas of a broker that has entered its cluster, upkeep of the replicas, and answers to other brokers."""

from __future__ import annotations

import secrets  # noqa: TID251 - the numbers of hash functions are drawn here
from dataclasses import dataclass
from functools import partial

from fairlead_api.identifiers import BrokerId
from fairlead_broker.coordination.transaction_store import TransactionStore
from fairlead_broker.peers.identity import PeerIdentity
from fairlead_broker.peers.peers import Peers, PeerTls
from fairlead_broker.peers.proofs import PeerEvidence, ProofMaker
from fairlead_broker.runtime.configs import Configs
from fairlead_broker.runtime.engine.sync_rounds import Syncing, SyncRounds
from fairlead_broker.runtime.following.move_throttle import MoveThrottle
from fairlead_broker.runtime.following.replica_fetching import ReplicaFetching
from fairlead_broker.runtime.hosting.damage import DamageRepair
from fairlead_broker.runtime.hosting.directory_health import DirectoryHealth
from fairlead_broker.runtime.hosting.epoch_reports import EpochReports
from fairlead_broker.runtime.hosting.replicas import Replicas
from fairlead_broker.runtime.hosting.role_changes import RoleChanges
from fairlead_broker.runtime.hosting.upkeep import LeaderClock
from fairlead_broker.runtime.leading.leader_writes import LeaderWrites
from fairlead_broker.runtime.leading.shared_parts import SharedParts
from fairlead_broker.runtime.lifecycle.cluster_entry import Entry
from fairlead_broker.runtime.lifecycle.departure import Departure
from fairlead_broker.runtime.peer_serving.cleaning_requests import CleaningRequests
from fairlead_broker.runtime.peer_serving.cleanings import Cleanings
from fairlead_broker.runtime.peer_serving.digests import Digests
from fairlead_broker.runtime.peer_serving.log_ends import ClusterLogs, log_ends
from fairlead_broker.runtime.peer_serving.peer_side import PeerSide
from fairlead_broker.runtime.peer_serving.positions import Positions
from fairlead_broker.runtime.peer_serving.promises import Promises
from fairlead_broker.runtime.peer_serving.replica_serving import ReplicaServing
from fairlead_broker.runtime.peer_serving.reports import Reports
from fairlead_broker.runtime.peer_serving.voters import Voters
from fairlead_broker.runtime.topic_views import TopicViews
from fairlead_broker.runtime.transactions.decision_writes import DecisionWrites
from fairlead_broker.runtime.transactions.looks import TransactionLooks
from fairlead_broker.runtime.transactions.meters import TransactionMeters
from fairlead_broker.wiring.engine import Engine


@dataclass(frozen=True, slots=True)
class DiskParts:
    """Components that write the data directory and the partition records, for every replica."""

    health: DirectoryHealth
    syncing: Syncing
    rounds: SyncRounds
    leader_writes: LeaderWrites
    decision_writes: DecisionWrites
    looks: TransactionLooks
    transaction_meters: TransactionMeters
    shared: SharedParts


@dataclass(frozen=True, slots=True)
class PeerParts:
    """Components that send and answer the requests between brokers about replicas."""

    replica_serving: ReplicaServing
    promises: Promises
    voters: Voters
    cluster_logs: ClusterLogs
    digests: Digests
    cleaning_requests: CleaningRequests
    cleanings: Cleanings
    positions: Positions
    reports: Reports
    peer_side: PeerSide


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """The replicas of a broker, and the components that maintain them."""

    configs: Configs
    views: TopicViews
    disk: DiskParts
    replicas: Replicas
    peers: PeerParts
    departure: Departure
    damage_repair: DamageRepair
    epoch_reports: EpochReports
    leader_clock: LeaderClock


def build_replicas(engine: Engine, entry: Entry, peers: Peers, syncing: Syncing) -> ReplicaParts:
    """Build the replicas of a broker. `Replicas.open_all` opens their logs."""
    settings, log = engine.settings, engine.log
    incarnation, metadata = entry.incarnation, entry.mirror.metadata
    configs = Configs(metadata, BrokerId(settings.id), settings.config_values)
    views = TopicViews(metadata, incarnation.broker, settings.topic_defaults)
    disk = build_disk(engine, entry, syncing)
    throttle = MoveThrottle(lambda: configs.move_bytes_per_second, engine.clock)
    fetching = ReplicaFetching(
        peers, engine.disk, entry.directory, disk.rounds, engine.clock, engine.supervisor, throttle, log
    )
    changes = RoleChanges(
        incarnation,
        metadata,
        disk.shared,
        fetching,
        engine.meters,
        engine.supervisor,
        lambda: configs.replica_lag_seconds,
    )
    replicas = Replicas(
        incarnation, metadata, views, entry.directory, engine.opening, changes, fetching, engine.meters, log
    )
    disk.health.subscribe(replicas.storage_failed)
    incarnation.subscribe(replicas.incarnation_changed)
    incarnation.subscribe(engine.telemetry.metric("fairlead_lost_leases_total").inc)
    directory = entry.directory.identity.directory_id
    serving = build_peer_serving(engine, entry, peers, replicas)
    return ReplicaParts(
        configs=configs,
        views=views,
        disk=disk,
        replicas=replicas,
        peers=serving,
        departure=Departure(entry.registration, incarnation, entry.mirror, peers, log),
        damage_repair=DamageRepair(entry.coordination, entry.mirror, incarnation, directory, replicas, log),
        epoch_reports=EpochReports(entry.coordination, entry.mirror, incarnation, replicas, log),
        leader_clock=LeaderClock(
            replicas,
            lambda: incarnation.confirmed,
            lambda: configs.replica_lag_seconds,
            serving.replica_serving.drop_idle,
        ),
    )


def build_disk(engine: Engine, entry: Entry, syncing: Syncing) -> DiskParts:
    """Build the fsync rounds, the writer of partition records, and the components that all replicas share."""
    limits, clock = engine.settings.limits, engine.clock
    health = DirectoryHealth(entry, engine.opening, engine.log)
    leader_writes = LeaderWrites(entry.coordination, entry.mirror.metadata.keys, engine.log)
    rounds = SyncRounds(
        syncing,
        clock,
        unsynced_bytes_max=limits.unsynced_bytes_max,
        failed=health.fail,
        observe_seconds=engine.telemetry.metric("fairlead_append_fsync_seconds").observe,
    )
    spawn = engine.supervisor.spawn
    store = TransactionStore(entry.coordination, entry.keys)
    meters = TransactionMeters(engine.telemetry)
    decision_writes = DecisionWrites(store, clock, spawn, meters)
    looks = TransactionLooks(store, decision_writes, clock, spawn, meters, engine.log)
    shared = SharedParts(
        clock=clock,
        pool=engine.disk,
        rounds=rounds,
        give_back_bytes=engine.produce_budget.give_back,
        queue_batches_max=limits.partition_queue_batches_max,
        sync_interval_seconds=limits.sync_interval_seconds,
        decompressed_bytes_max=limits.decompressed_bytes_max,
        directory_failed=health.fail,
        write_record=leader_writes.write,
        lease_confirmed=entry.incarnation.confirms,
        looks=looks,
        copied_again=engine.telemetry.metric("fairlead_replica_copied_again_total").inc,
    )
    return DiskParts(health, syncing, rounds, leader_writes, decision_writes, looks, meters, shared)


def build_peer_serving(engine: Engine, entry: Entry, peers: Peers, replicas: Replicas) -> PeerParts:
    """Build the components that answer calls from other brokers."""
    limits, metadata = engine.settings.limits, entry.mirror.metadata
    replica_serving = ReplicaServing(
        replicas.find,
        engine.disk,
        engine.clock,
        entry.incarnation.epoch,
        bytes_max=limits.fetch_bytes_max,
        wait_seconds_max=limits.fetch_wait_seconds_max,
    )
    digests = Digests(replicas.log_of, metadata, peers, engine.disk, engine.clock, secrets.token_bytes)
    requests = CleaningRequests(is_on=limits.cleans)
    cleanings = Cleanings(replicas.log_of, requests, metadata, peers, engine.disk, engine.clock)
    positions = Positions(
        replicas.find, replicas.log_of, metadata, peers, engine.disk, engine.supervisor.spawn
    )
    promises = Promises(
        replicas.compared,
        replicas.log_without_role,
        entry.mirror,
        entry.incarnation,
        entry.directory.identity.directory_id,
    )
    voters = Voters(replicas.find, peers)
    reports = Reports(entry.directory.path, engine.disk, lambda: metadata.brokers, peers)
    return PeerParts(
        promises=promises,
        voters=voters,
        replica_serving=replica_serving,
        cluster_logs=ClusterLogs(replicas.log_of, metadata, peers),
        digests=digests,
        cleaning_requests=requests,
        cleanings=cleanings,
        positions=positions,
        reports=reports,
        peer_side=PeerSide(
            peers,
            entry.mirror,
            replica_serving,
            partial(log_ends, replicas.log_of),
            promises.give,
            voters.report,
            digests.digest,
            cleanings.own,
            positions.answer,
            reports.own,
        ),
    )


def build_peers(engine: Engine, entry: Entry, evidence: PeerEvidence, tls: PeerTls | None) -> Peers:
    """Build the client for calls to other brokers.

    `evidence` proves to peers that this process is the registered broker. `tls` is the material for peers with TLS.
    """
    metadata = entry.mirror.metadata
    identity = PeerIdentity(
        entry.cluster.cluster_id,
        entry.incarnation.broker,
        evidence.secret,
        lambda: entry.incarnation.epoch,
        lambda: metadata.revision,
    )
    proofs = ProofMaker(evidence.key, identity.cluster_id, identity.broker, identity.epoch, engine.clock)
    return Peers(identity, lambda: metadata.brokers, engine.clock, tls, proofs)
